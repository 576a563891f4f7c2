from __future__ import annotations

import io
import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import PermanentError, UsageError
from dra_agent.manifests import load_manifests, parse_objects

CLAIM = """\
# two GPUs
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: pair
spec:
  devices:
    requests:
    - name: gpus
      exactly:
        deviceClassName: gpu
        count: 2
"""


def error_of(text: str) -> str:
    with pytest.raises(PermanentError) as error:
        parse_objects(text, "claim.yaml")
    return str(error.value)


def test_several_documents_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("---\n" + CLAIM + "---\n# nothing here\n---\n" + CLAIM.replace("pair", "other"))
    first, second = load_manifests(path)
    assert (first.kind, first.name, first.number) == ("ResourceClaim", "pair", 1)
    assert (second.name, second.number) == ("other", 2)
    assert second.line_of("metadata.name") == 21
    assert second.where("spec.devices.requests[0].exactly.count") == f"{path}:28"


def test_an_invalid_value_is_reported_with_its_line() -> None:
    assert error_of(CLAIM.replace("count: 2", "count: -2")) == (
        "claim.yaml:12: spec.devices.requests[0].exactly.count: must be greater than 0, is -2"
    )


def test_every_error_of_every_object_is_reported() -> None:
    text = CLAIM.replace("count", "cout") + "---\n" + CLAIM.replace("deviceClassName: gpu", "adminAccess: true")
    lines = error_of(text).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["claim.yaml:12", "claim.yaml:23"]
    assert 'did you mean "count"?' in lines[0]
    assert "deviceClassName: is missing" in lines[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x10", 16),
        ("-0", 0),
        ("8.5", 8.5),
        ("0.30000000000000004", 0.1 + 0.2),
        ("7.8459735791271921e65", 7.8459735791271921e65),
        ("9223372036854775807", 2**63 - 1),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551616", 18446744073709551616.0),
        ("1" + "0" * 30, 1e30),
        *((text, text) for text in ("0x" + "f" * 17, "9" * 5000, "0x" + "f" * 5000, "1e999", "-1e999")),
    ],
)
def test_a_number_is_what_kubectl_reads(text: str, value: object) -> None:
    """sigs.k8s.io/yaml: an integer of 64 bits, otherwise a fraction, otherwise text."""
    (loaded,) = parse_objects(f"kind: Job\nfield: {text}\n", "job.yaml", strict=False)
    assert loaded.value["field"] == value and type(loaded.value["field"]) is type(value)
    if "x" not in text:
        (loaded,) = parse_objects(f'{{"kind": "Job", "field": {text}}}', "job.json", strict=False)
        assert loaded.value["field"] == value and type(loaded.value["field"]) is type(value)


def test_a_list_of_kubectl_is_expanded() -> None:
    items = "".join("- " + CLAIM.split("\n", 1)[1].replace("\n", "\n  ").rstrip() + "\n" for _ in range(2))
    objects = parse_objects("apiVersion: v1\nkind: List\nitems:\n" + items, "all.yaml")
    assert [manifest.name for manifest in objects] == ["pair", "pair"]
    assert objects[1].line_of("metadata.name") == 18


def test_json_is_accepted_as_yaml() -> None:
    text = '{"apiVersion": "resource.k8s.io/v1",\n "kind": "DeviceClass",\n "metadata": {"name": "gpu"}}'
    (manifest,) = parse_objects(text, "class.json")
    assert manifest.value == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
    }
    assert manifest.line_of("metadata") == 3


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "Node",\n "kind": "Pod"}', "dump.json:2: not YAML: the key 'kind' is there twice"),
        (
            '{"kind": "List", "items": [\n{"kind": "Node",\n"spec": {"a": [{"b": 1,\n"b": 1}]}}]}',
            "dump.json:4: not YAML: the key 'b' is there twice",
        ),
    ],
)
def test_a_repeated_key_in_json_is_refused(text: str, message: str, strict: bool) -> None:
    with pytest.raises(UsageError) as error:
        parse_objects(text, "dump.json", strict=strict)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("value", ["1e999", "NaN", "-Infinity", '"\\ud800"'])
def test_json_with_a_value_that_no_json_can_hold_is_not_decoded_as_json(value: str) -> None:
    """The YAML reader decides: it refuses the text, or reads the value as text or number."""
    text = '{"kind": "Node", "spec": ' + value + "}"
    results = []
    for strict_text in (text, " " + text):
        try:
            (loaded,) = parse_objects(strict_text, "dump.json", strict=False)
            results.append(str(loaded.value))
        except UsageError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_a_character_of_two_escapes_in_printed_json_is_read() -> None:
    (loaded,) = parse_objects('{"kind": "Node", "spec": "\\ud83d\\ude00"}', "dump.json", strict=False)
    assert loaded.value["spec"] == "\U0001f600"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\n", "claim.yaml:2: not YAML: did not find expected ',' or ']'"),
        ("a: 1\na: 2\n", "claim.yaml:2: not YAML: the key 'a' is there twice"),
        ("? [a]\n: 1\n", "claim.yaml:1: not YAML: a key must be text"),
        ("- a\n", "claim.yaml:1: not an object: a document must have apiVersion, kind and spec"),
        ("# only a comment\n", "claim.yaml: holds no object; write at least one resource.k8s.io/v1 object"),
        ("a: &a [x]\nb: *c\n", "claim.yaml:2: not YAML: found undefined alias"),
        ("a: \x07\n", "claim.yaml"),
        ("a: 1\nb: \udcff\n", "claim.yaml:2: not UTF-8 text"),
    ],
)
def test_text_without_an_object_is_refused(text: str, message: str) -> None:
    assert error_of(text).startswith(message)


def test_alias_expansion_is_limited() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    assert "more than a million entries, those of its aliases included" in error_of(text)


def test_alias_expansion_of_long_texts_is_limited() -> None:
    """A megabyte repeated four hundred times is one object in memory, and 400 MiB when it is serialized."""
    long = "x" * (1 << 20)
    values = f"    k0: &a {long}\n" + "".join(f"    k{n}: *a\n" for n in range(1, 400))
    keys = f"    k0:\n      ? &a {long}\n      : 1\n" + "".join(f"    k{n}:\n      *a : 1\n" for n in range(1, 400))
    for expansion in (values, keys):
        text = CLAIM.replace("  name: pair\n", "  name: pair\n  annotations:\n" + expansion)
        assert "aliases grow to more than 16 MiB" in error_of(text)


def test_aliases_of_several_documents_count_together() -> None:
    one = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 5)
    )
    assert "more than a million entries, those of its aliases included" in error_of("---\n".join([one] * 20))


def test_a_document_of_too_many_entries_is_refused_before_it_is_built() -> None:
    tracemalloc.start()
    try:
        message = error_of("a: [" + "1," * 2_000_001 + "]")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message.startswith("claim.yaml:1: not YAML: more than a million entries")
    assert peak < 100 << 20, "2 million nodes need a gigabyte"


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/object/new:os.system", "!run"])
@pytest.mark.parametrize("place", ["metadata: {tag} [{command}]", "metadata: {{name: {tag} [{command}]}}"])
def test_yaml_tags_execute_nothing(tmp_path: Path, tag: str, place: str) -> None:
    text = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n"
    line = place.format(tag=tag, command=f'"touch {tmp_path}/made"')
    assert "must be" in error_of(text + line + "\nspec: {devices: {}}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 200_000,
        "a: " + "[" * 3000 + "]" * 3000,
        '{"a": ' * 3000 + "1" + "}" * 3000,
        "a: &a [*a]\n",
        "a0: &a0 {}\n" + "".join(f"a{n}: &a{n} {{a: *a{n - 1}}}\n" for n in range(1, 2000)),
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    assert "more than 100 nested lists and mappings" in error_of(text)


def test_numbers_that_fit_no_field_are_refused() -> None:
    assert "count: must be a whole number of 64 bits" in error_of(CLAIM.replace("count: 2", "count: " + "9" * 30))
    assert "count: must be a whole number of 64 bits" in error_of(CLAIM.replace("count: 2", "count: 1.5"))


def test_scalars_are_parsed_like_kubectl() -> None:
    text = CLAIM.replace(
        "  name: pair\n", "  name: pair\n  annotations: {t: 12:30, d: 2024-01-01, b: 0000:3b:00.0, q: '1'}\n"
    )
    (manifest,) = parse_objects(text.replace("12:30", "'12:30'"), "claim.yaml")
    assert manifest.value["metadata"]["annotations"] == {"t": "12:30", "d": "2024-01-01", "b": "0000:3b:00.0", "q": "1"}


def test_unknown_fields_are_ignored_if_not_strict() -> None:
    text = CLAIM + "  novelty: 1\n"
    assert "unknown field" in error_of(text)
    assert parse_objects(text, "claim.yaml", strict=False)[0].value["spec"]["novelty"] == 1


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"missing\.yaml: cannot be read: No such file"):
        load_manifests(tmp_path / "missing.yaml")
    with pytest.raises(PermanentError, match="cannot be read: Is a directory"):
        load_manifests(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(PermanentError, match="not UTF-8"):
        load_manifests(tmp_path / "binary")


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PermanentError, match="fifo: cannot be read: Is a FIFO, not a regular file"):
        load_manifests(tmp_path / "fifo")
    with pytest.raises(PermanentError, match="cannot be read: Is a device, not a regular file"):
        load_manifests("/dev/zero")
    (tmp_path / "claim.yaml").write_text(CLAIM)
    with pytest.raises(PermanentError, match=r"claim\.yaml: cannot be read: Larger than 10 bytes"):
        load_manifests(tmp_path / "claim.yaml", max_bytes=10)


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(CLAIM))
    assert load_manifests("-")[0].file == "standard input"
    monkeypatch.setattr("sys.stdin", io.StringIO(CLAIM))
    with pytest.raises(PermanentError, match="standard input: cannot be read: Larger than 10 bytes"):
        load_manifests("-", max_bytes=10)


def test_invalid_expressions_are_reported_at_load() -> None:
    text = CLAIM + "        selectors:\n        - cel: {expression: 'device.driver = \"x\"'}\n"
    assert error_of(text).startswith(
        "claim.yaml:14: spec.devices.requests[0].exactly.selectors[0].cel.expression: does not compile: 1:15: "
    )
    assert "unknown name" in error_of(text.replace('device.driver = "x"', "devise.driver == 1"))


PRINTED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"n{number}", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "12:30"},
            "spec": {
                "pool": {"generation": number},
                "devices": [{"name": f"d{one}", "x": [1.5, None]} for one in range(20)],
            },
        }
        for number in range(40)
    ],
}


def test_printed_json_is_read_as_yaml_is_and_has_the_same_lines() -> None:
    text = json.dumps(PRINTED, indent=1)
    # A comment makes it YAML.
    expected = parse_objects(f"# one line more\n{text}", "f", strict=False)
    found = parse_objects(text, "f", strict=False)
    assert [one.value for one in found] == [one.value for one in expected] == PRINTED["items"]
    for index in (0, 7, 39):
        for field in ("spec.pool.generation", "spec.devices[3].name", "absent"):
            assert found[index].line_of(field) == expected[index].line_of(field) - 1


def test_printed_json_takes_a_fraction_of_the_time_of_yaml() -> None:
    text = json.dumps(PRINTED)

    def cpu_s(content: str) -> float:
        began = time.process_time()
        parse_objects(content, "f", strict=False)
        return time.process_time() - began

    cpu_s(text)
    assert min(cpu_s(text) for _ in range(3)) * 3 < min(cpu_s(f"# yaml\n{text}") for _ in range(3))


@pytest.mark.parametrize(
    "text", ["{", '{"kind": "List", "items": [1]}', '{"a": ' * 2000 + "1" + "}" * 2000, '{"kind": "\ud800"}']
)
def test_broken_json_has_the_errors_of_yaml(text: str) -> None:
    with pytest.raises(UsageError):
        parse_objects(text, "f", strict=False)
