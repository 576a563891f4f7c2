"""`dra-agent explain` on files and with an agent: output, exit codes, error messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec.yaml
import pytest

from allocator.cases import DRIVER, allocated_claim, claim, device, make_query, make_request, model, slice_of
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


def write(directory: Path, query: dict[str, Any]) -> list[str]:
    """Write the query as kubectl and users do: Lists in YAML and JSON, several documents in one file."""
    slices = {"apiVersion": "v1", "kind": "List", "items": typed("ResourceSlice", query["slices"])}
    classes = {"apiVersion": API, "kind": "DeviceClassList", "items": typed("DeviceClass", query["classes"])}
    (directory / "slices.yaml").write_text(dump(slices))
    (directory / "classes.json").write_text(json.dumps(classes))
    (directory / "claim.yaml").write_text(documents(typed("ResourceClaim", query["claims"])))
    arguments = ["explain", "-f", "claim.yaml", "--slices", "slices.yaml", "--classes", "classes.json"]
    if query["allocated"]:
        (directory / "held.yaml").write_text(documents(typed("ResourceClaim", query["allocated"])))
        arguments += ["--allocated", "held.yaml"]
    return arguments


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_claim_that_fits_exits_with_0(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = make_query(
        [slice_of(device("a"), device("b"))], [claim(make_request())], [allocated_claim("x", {"device": "a"})]
    )
    assert main(write(in_directory, query)) == 0
    text = capsys.readouterr().out
    assert "fits on node n1" in text
    assert "it is held by claim default/x" in text
    assert any(line.split() == ["allocated", "1", "b", "-"] for line in text.splitlines())
    assert main([*write(in_directory, query), "--all-devices"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(row[:1] == ["b"] and row[2:] == ["allocated", "-"] for row in rows)
    assert main([*write(in_directory, query), "-o", "name"]) == 0
    assert capsys.readouterr().out == "b\n"


def test_a_claim_that_does_not_fit_exits_with_1(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = make_query([slice_of(device("a", {"model": "A"}))], [claim(make_request(expression=model("B")))])
    assert main([*write(in_directory, query), "-o", "json"]) == 1
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["fits"] is False
    (entry,) = explanation["claims"][0]["requests"][0]["devices"]
    assert entry["rejections"][0]["expression"] == model("B")
    assert main([*write(in_directory, query), "-o", "name"]) == 1
    assert capsys.readouterr().out == ""


def test_devices_are_grouped_by_reason(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = [device(f"a-{number}", {"model": "A"}) for number in range(5)]
    query = make_query([slice_of(*devices)], [claim(make_request(expression=model("B")))])
    assert main(write(in_directory, query)) == 1
    text = capsys.readouterr().out
    assert sum(line.startswith("rejected   5 ") for line in text.splitlines()) == 1
    assert "a-0, a-1, a-2 and 2 more" in text and text.endswith("--all-devices shows every device\n")
    assert main([*write(in_directory, query), "--all-devices"]) == 1
    assert sum(line.startswith("a-") for line in capsys.readouterr().out.splitlines()) == 5


def test_explain_writes_no_file(in_directory: Path) -> None:
    query = make_query([slice_of(device("a"))], [claim(make_request())])
    arguments = write(in_directory, query)
    before = {path: path.read_bytes() for path in in_directory.iterdir()}
    main(arguments)
    assert {path: path.read_bytes() for path in in_directory.iterdir()} == before


def test_node_labels_are_read_from_a_file(in_directory: Path) -> None:
    expression = {"key": "zone", "operator": "In", "values": ["x"]}
    reach: dict[str, Any] = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    arguments = write(in_directory, make_query([slice_of(device("a"), **reach)], [claim(make_request())]))
    assert main([*arguments, "--node", "n1"]) == 1
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"zone": "x"}}}
    (in_directory / "node.yaml").write_text(dump(node))
    assert main([*arguments, "--node", "n1", "--slices", "node.yaml"]) == 0


def test_an_allocated_claim_is_explained_as_unallocated(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = make_query([slice_of(device("a"))], [claim(make_request())], [allocated_claim("claim", {"device": "a"})])
    assert main(write(in_directory, query)) == 0
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
def test_an_invalid_file_is_named_with_its_line(
    text: str, message: str, in_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(in_directory, make_query([slice_of(device("a"))], [claim(make_request())]))
    (in_directory / "claim.yaml").write_text(text)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_missing_file_old_version_and_missing_node_are_errors(
    in_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = write(in_directory, make_query([slice_of(device("a"), allNodes=True)], [claim(make_request())]))
    assert main(arguments) == 2
    assert "choose the node with --node NAME" in capsys.readouterr().err
    assert main([*arguments, "--node", "n1", "--allocated", "absent.yaml"]) == 2
    assert "absent.yaml" in capsys.readouterr().err
    old = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {}}
    (in_directory / "old.yaml").write_text(dump(old))
    assert main([*arguments, "--node", "n1", "--slices", "old.yaml"]) == 2
    assert "old.yaml:1: ResourceSlice s is of version resource.k8s.io/v1beta1" in capsys.readouterr().err


class FakeConnection:
    """A fake connection to a running agent."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __enter__(self) -> FakeConnection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, _: object) -> dict[str, Any]:
        return self.state


def test_without_slices_the_agent_is_queried(
    in_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query = make_query([slice_of(device("a"))], [claim(make_request())], [allocated_claim("x", {"device": "a"})])
    write(in_directory, query)
    monkeypatch.setattr(connection, "connect", lambda _: FakeConnection({**query, "driver": "gpu.example.com"}))
    assert main(["explain", "-f", "claim.yaml"]) == 1
    assert "held by claim default/x" in capsys.readouterr().out
    assert main(["explain", "-f", "claim.yaml", "--node", "n1"]) == 2
    assert "--node needs --slices" in capsys.readouterr().err


@pytest.mark.parametrize(
    "empty", ["apiVersion: v1\nitems: []\nkind: List\n", '{"kind": "ResourceSliceList", "items": []}']
)
def test_an_empty_list_of_slices_is_reported(
    in_directory: Path, capsys: pytest.CaptureFixture[str], empty: str
) -> None:
    query = make_query([slice_of(device("a"))], [claim(make_request())])
    arguments = write(in_directory, query)
    (in_directory / "slices.yaml").write_text(empty)
    for node in ((), ("--node", "n1")):
        assert main([*arguments, *node]) == 1
        assert capsys.readouterr().out.startswith("does not fit: no ResourceSlices are published")
    (in_directory / "slices.yaml").write_text("")
    assert main(arguments) == 2


def test_a_text_of_a_driver_begins_no_line(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The API permits every character in values of attributes, and expressions of several lines."""
    devices = [device(name, {"rack": f"{name}\nfits on node n1"}) for name in ("a", "b")]
    asked = claim(
        make_request(count=2, expression=f'device.driver == "{DRIVER}" &&\nfalse'),
        constraints=[{"requests": ["main"], "matchAttribute": f"{DRIVER}/rack"}],
    )
    for claims in ([asked], [{**asked, "spec": {"devices": {**asked["spec"]["devices"], "requests": [PLAIN]}}}]):
        assert main(write(in_directory, make_query([slice_of(*devices)], claims))) == 1
        text = capsys.readouterr().out
        assert "\\nf" in text and not any(line.startswith(("fits on", "false")) for line in text.splitlines())


PLAIN = make_request(count=2)


def test_many_claims_and_devices_are_summarized(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each claim has a row for each device; all of them have one of two reasons."""
    slices = [
        slice_of(*(device(f"gpu-{pool}-{index}", {"model": "A"}) for index in range(100)), name=pool, pool=pool)
        for pool in (f"p{number}" for number in range(8))
    ]
    claims = [claim(make_request(expression=model("B")), name=f"c{number}") for number in range(20)]
    arguments = write(in_directory, make_query(slices, claims))
    assert main([*arguments, "-o", "json", "--timeout", "120"]) == 1
    short = json.loads(text := capsys.readouterr().out)
    rows = [request for one in short["claims"] for request in one["requests"]]
    assert sum(len(request["devices"]) + request["omitted_devices"] for request in rows) == 20 * 800
    assert all(request["devices"] for request in rows)
    assert short["omitted"].endswith("--all-devices has every device")
    assert len(text) < 1 << 20
    assert main([*arguments, "--timeout", "120"]) == 1
    assert len(capsys.readouterr().out) < 64 << 10
    assert main([*arguments, "-o", "json", "--all-devices", "--timeout", "120"]) == 1
    every = json.loads(capsys.readouterr().out)
    assert sum(len(request["devices"]) for one in every["claims"] for request in one["requests"]) == 20 * 800
    assert "omitted" not in every
