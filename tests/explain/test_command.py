"""`dra-agent explain` on files and beside an agent: what it prints, its exit codes, its messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec.yaml
import pytest

from allocator.cases import ask, claim, device, held, model, question, slice_of
from dra_agent.cli import connection
from dra_agent.cli.main import main

API = "resource.k8s.io/v1"
HEAD = f"apiVersion: {API}\nkind: ResourceClaim\n"


def typed(kind: str, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"apiVersion": API, "kind": kind, **entry} for entry in objects]


def dump(value: Any) -> str:
    return msgspec.yaml.encode(value).decode()


def documents(values: list[Any]) -> str:
    return "---\n".join(dump(value) for value in values)


def write(directory: Path, asked: dict[str, Any]) -> list[str]:
    """Write the question as kubectl and users do: Lists in YAML and JSON, documents one after another."""
    slices = {"apiVersion": "v1", "kind": "List", "items": typed("ResourceSlice", asked["slices"])}
    classes = {"apiVersion": API, "kind": "DeviceClassList", "items": typed("DeviceClass", asked["classes"])}
    (directory / "slices.yaml").write_text(dump(slices))
    (directory / "classes.json").write_text(json.dumps(classes))
    (directory / "claim.yaml").write_text(documents(typed("ResourceClaim", asked["claims"])))
    arguments = ["explain", "-f", "claim.yaml", "--slices", "slices.yaml", "--classes", "classes.json"]
    if asked["allocated"]:
        (directory / "held.yaml").write_text(documents(typed("ResourceClaim", asked["allocated"])))
        arguments += ["--allocated", "held.yaml"]
    return arguments


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_fits_is_shown_with_exit_code_0(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = question([slice_of(device("a"), device("b"))], [claim(ask())], [held("x", {"device": "a"})])
    assert main(write(in_directory, asked)) == 0
    shown = capsys.readouterr().out
    assert "fits on node n1" in shown
    assert "it is held by claim default/x" in shown
    assert any(line.split()[0] == "b" and "allocated" in line for line in shown.splitlines() if line)


def test_what_does_not_fit_is_shown_with_exit_code_1(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = question([slice_of(device("a", {"model": "A"}))], [claim(ask(expression=model("B")))])
    assert main([*write(in_directory, asked), "-o", "json"]) == 1
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["fits"] is False
    (entry,) = explanation["claims"][0]["requests"][0]["devices"]
    assert entry["rejections"][0]["expression"] == model("B")


def test_nothing_is_written(in_directory: Path) -> None:
    asked = question([slice_of(device("a"))], [claim(ask())])
    arguments = write(in_directory, asked)
    before = {path: path.read_bytes() for path in in_directory.iterdir()}
    main(arguments)
    assert {path: path.read_bytes() for path in in_directory.iterdir()} == before


def test_the_node_s_labels_are_read_from_a_file(in_directory: Path) -> None:
    expression = {"key": "zone", "operator": "In", "values": ["x"]}
    reach: dict[str, Any] = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    arguments = write(in_directory, question([slice_of(device("a"), **reach)], [claim(ask())]))
    assert main([*arguments, "--node", "n1"]) == 1
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"zone": "x"}}}
    (in_directory / "node.yaml").write_text(dump(node))
    assert main([*arguments, "--node", "n1", "--slices", "node.yaml"]) == 0


def test_a_claim_that_is_allocated_already_is_explained_as_if_it_were_not(
    in_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question([slice_of(device("a"))], [claim(ask())], [held("claim", {"device": "a"})])
    assert main(write(in_directory, asked)) == 0
    assert "claim default/claim is allocated already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: [", "claim.yaml"),
        ("apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: x}\nspec: {}\n", "claim.yaml"),
        (
            HEAD + "metadata:\n  name: x\nspec:\n  devices:\n    requests:\n"
            "    - name: r\n      exactly:\n        deviceClassName: any\n        count: -1\n",
            "claim.yaml:11: spec.devices.requests[0].exactly.count",
        ),
        (
            HEAD + "metadata:\n  name: x\nspec:\n  devices:\n    request: []\n",
            "claim.yaml:7",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    text: str, message: str, in_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(in_directory, question([slice_of(device("a"))], [claim(ask())]))
    (in_directory / "claim.yaml").write_text(text)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_missing_file_an_old_version_and_a_missing_node_are_wrong_use(
    in_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(in_directory, question([slice_of(device("a"), allNodes=True)], [claim(ask())]))
    assert main(arguments) == 2
    assert "choose the node with --node NAME" in capsys.readouterr().err
    assert main([*arguments, "--node", "n1", "--allocated", "absent.yaml"]) == 2
    assert "absent.yaml" in capsys.readouterr().err
    old = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {}}
    (in_directory / "old.yaml").write_text(dump(old))
    assert main([*arguments, "--node", "n1", "--slices", "old.yaml"]) == 2
    assert "old.yaml:1: ResourceSlice s is of version resource.k8s.io/v1beta1" in capsys.readouterr().err


class Agent:
    """Stands for the connection to a running agent."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, _: object) -> dict[str, Any]:
        return self.state


def test_without_slices_the_agent_is_asked(
    in_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question([slice_of(device("a"))], [claim(ask())], [held("x", {"device": "a"})])
    write(in_directory, asked)
    monkeypatch.setattr(connection, "connect", lambda _: Agent({**asked, "driver": "gpu.example.com"}))
    assert main(["explain", "-f", "claim.yaml"]) == 1
    assert "held by claim default/x" in capsys.readouterr().out
    assert main(["explain", "-f", "claim.yaml", "--node", "n1"]) == 2
    assert "--node needs --slices" in capsys.readouterr().err


@pytest.mark.parametrize(
    "empty", ["apiVersion: v1\nitems: []\nkind: List\n", '{"kind": "ResourceSliceList", "items": []}']
)
def test_an_empty_list_of_slices_says_that_none_are_published(
    in_directory: Path, capsys: pytest.CaptureFixture[str], empty: str
) -> None:
    asked = question([slice_of(device("a"))], [claim(ask())])
    arguments = write(in_directory, asked)
    (in_directory / "slices.yaml").write_text(empty)
    for node in ((), ("--node", "n1")):
        assert main([*arguments, *node]) == 1
        assert capsys.readouterr().out.startswith("does not fit: no ResourceSlices are published")
    (in_directory / "slices.yaml").write_text("")
    assert main(arguments) == 2
