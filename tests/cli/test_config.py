"""`dra-agent config`: configuration errors have file, line and field, and the published schema matches the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dra_agent.agent.setup_registry import known_setups
from dra_agent.cli.main import main
from dra_agent.errors import PermanentError
from dra_agent.prepare.config import decode, schema
from dra_agent.prepare.setup import API_VERSION

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(str(path) for path in (ROOT / "examples/configuration").glob("*.yaml"))
PUBLISHED = ROOT / "docs/reference/configuration-kinds.schema.json"

CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpus}
spec:
  config:
  - opaque:
      driver: other.example
      parameters: {anything: goes}
  - opaque:
      driver: dra-agent.internal
      parameters:
        apiVersion: dra-agent.internal/v1
        kind: GpuConfig
        timeSlicing:
          interval: Short
"""


def validate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["config", "validate", *arguments])
    return code, capsys.readouterr().out


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "objects.yaml"
    path.write_text(text)
    return str(path)


def test_valid_examples_have_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = validate(capsys, *EXAMPLES)
    assert code == 0 and output == "3 objects, 2 configurations for dra-agent.internal: nothing wrong\n"


PARAMETERS = "spec.config[1].opaque.parameters"
WRONG = {
    "interval: Short": ("interval: Shrt", 15, f"{PARAMETERS}.timeSlicing.interval: invalid enum value 'Shrt'"),
    "interval:": ("intervall:", 15, f"{PARAMETERS}.timeSlicing.intervall: no such field"),
    "timeSlicing:": ("timeslicing:", 14, f"{PARAMETERS}.timeslicing: no such field"),
    "kind: GpuConfig": ("kind: GPUConfig", 13, f"{PARAMETERS}.kind: 'GPUConfig' of 'dra-agent.internal/v1' is not"),
    "apiVersion: dra-agent.internal/v1": ("apiVersion: 1", 12, f"{PARAMETERS}.apiVersion: is missing or no text"),
    "  config:": ("  configs:", 5, "spec.configs: unknown field"),
}


@pytest.mark.parametrize("original", list(WRONG))
def test_errors_have_file_line_and_field(capsys: pytest.CaptureFixture[str], tmp_path: Path, original: str) -> None:
    replacement, line, message = WRONG[original]
    path = file(tmp_path, CLASS.replace(original, replacement))
    code, output = validate(capsys, path)
    assert code == 1 and output.startswith(f"{path}:{line}: {message}"), output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize(
    ("kind", "path"),
    [("ResourceClaim", "spec.devices.config"), ("ResourceClaimTemplate", "spec.spec.devices.config")],
)
def test_claims_and_templates_of_every_version_are_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, kind: str, path: str
) -> None:
    entry = {"opaque": {"driver": "dra-agent.internal", "parameters": {"apiVersion": API_VERSION, "kind": "Odd"}}}
    request: dict[str, Any] = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    if version == "v1beta1":
        request = {"name": "gpu", "deviceClassName": "gpu"}
    value: Any = {"devices": {"requests": [request], "config": [entry]}}
    if kind == "ResourceClaimTemplate":
        value = {"spec": value}
    metadata = {"name": "one", "namespace": "default"}
    text = json.dumps({"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": metadata, "spec": value})
    code, output = validate(capsys, file(tmp_path, text))
    assert (
        code == 1
        and f":1: {path}[0].opaque.parameters.kind: 'Odd' of" in output
        and "known kinds: " in output
        and "GpuConfig of" in output
    )


def test_bare_parameters_are_checked_and_other_kinds_ignored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n---\n"
    bare = "apiVersion: dra-agent.internal/v1\nkind: GpuConfig\ntimeSlicing:\n  interval: Long\n"
    assert validate(capsys, file(tmp_path, pod + bare)) == (
        0,
        "2 objects, 1 configuration for dra-agent.internal: nothing wrong\n",
    )
    path = file(tmp_path, pod + bare.replace("Long", "1"))
    code, output = validate(capsys, path)
    assert code == 1 and output == f"{path}:8: timeSlicing.interval: expected `str`, got `int`; correct the settings\n"
    path = file(tmp_path, bare.replace("/v1", "/v2"))
    assert validate(capsys, path)[1].startswith(f"{path}:2: kind: 'GpuConfig' of 'dra-agent.internal/v2' is not known")
    path = file(tmp_path, bare.partition("timeSlicing")[0])
    assert validate(capsys, path) == (1, f"{path}:1: timeSlicing: is missing; correct the settings\n")


def test_another_driver_name_has_the_same_kinds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = file(tmp_path, CLASS.replace("driver: dra-agent.internal", "driver: gpus.example").replace("Short", "Shrt"))
    assert validate(capsys, path)[0] == 0, "not for this driver"
    assert validate(capsys, path, "--driver-name", "gpus.example")[0] == 1


def test_json_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = file(tmp_path, CLASS.replace("Short", "Shrt"))
    code, output = validate(capsys, path, *EXAMPLES, "-o", "json")
    assert code == 1
    answer = json.loads(output)
    assert (answer["objects"], answer["configurations"]) == (4, 3)
    assert answer["problems"] == [
        {
            "file": path,
            "line": 15,
            "object": "DeviceClass gpus",
            "field": f"{PARAMETERS}.timeSlicing.interval",
            "message": "invalid enum value 'Shrt'",
            "todo": "correct the settings",
        }
    ]


@pytest.mark.parametrize("text", ["a: [", "a: 1\na: 2\n", "", "- 1\n"])
def test_unreadable_files_are_usage_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = file(tmp_path, text)
    assert main(["config", "validate", path]) == 2
    assert f"dra-agent: {path}" in capsys.readouterr().err
    assert main(["config", "validate", str(tmp_path / "missing.yaml")]) == 2


def test_published_schema_is_up_to_date() -> None:
    printed = subprocess.run(
        [Path(sys.executable).with_name("dra-agent"), "config", "schema"], check=True, capture_output=True
    ).stdout
    assert printed == PUBLISHED.read_bytes(), f"run `dra-agent config schema > {PUBLISHED}`"


def test_descriptions_of_the_schema_do_not_depend_on_how_python_keeps_docstrings() -> None:
    parts = schema(known_setups().values())["$defs"].values()
    lines = [line for part in parts for line in part["description"].split("\n")]
    assert len(lines) > len(known_setups()), "some have several paragraphs"
    assert lines == [line.strip() for line in lines]


def parameters(**more: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "GpuConfig", **more}


@pytest.mark.parametrize(
    "value",
    [
        parameters(timeSlicing={"interval": "Long"}),
        parameters(timeSlicing={}),
        parameters(),
        parameters(timeSlicing={"interval": "long"}),
        parameters(timeSlicing={"interval": 3}),
        parameters(timeSlicing={"interval": "Long", "more": 1}),
        parameters(timeSlicing=None),
        parameters(timeSlicing={}, more=1),
        {**parameters(timeSlicing={}), "kind": "Gpu"},
        {**parameters(timeSlicing={}), "apiVersion": "dra-agent.internal/v2"},
        {"timeSlicing": {}},
        [],
    ],
)
def test_the_schema_accepts_the_values_that_the_agent_accepts(value: Any) -> None:
    try:
        decode(value, known_setups(), field="")
        accepted = True
    except PermanentError:
        accepted = False
    assert jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_bytes())).is_valid(value) == accepted


def test_every_kind_has_a_schema() -> None:
    published = json.loads(PUBLISHED.read_bytes())
    jsonschema.Draft202012Validator.check_schema(published)
    kinds = {(part["apiVersion"]["const"], part["kind"]["const"]) for part in _kinds(published)}
    assert kinds == set(known_setups())
    for part in published["$defs"].values():
        assert part["additionalProperties"] is False, f"{part['title']} accepts unknown fields"


def _kinds(published: dict[str, Any]) -> list[dict[str, Any]]:
    return [published["$defs"][shape["$ref"].rpartition("/")[2]]["properties"] for shape in published["oneOf"]]
