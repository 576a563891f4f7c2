"""A claim of another tenant with parameters that no decoder reads: every other question is answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import allocated_claim, claim, device, make_request, model, slice_of
from dra_agent.cli.main import main
from fake_apiserver.fake import FakeApi
from fake_apiserver.foreign_text import BAD, DEEP, PLACE, parameters

Command = Callable[..., tuple[int, str, str]]
NOTE = "ResourceClaim tenants/theirs: "


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    """A node with two GPUs, one of them held by a claim with foreign parameters, and a claim that waits."""
    fake_api.foreign = DEEP
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    fake_api.put("deviceclasses", {"metadata": {"name": "any"}, "spec": {"config": [parameters()]}})
    fake_api.put("nodes", {"metadata": {"name": "n1"}, "spec": {}})
    devices = [device(f"gpu-{name.lower()}", {"model": name}) for name in ("A", "B")]
    fake_api.put("resourceslices", slice_of(*devices, name="n1-slice", pool="n1", nodeName="n1"))
    theirs = allocated_claim("theirs", {"device": "gpu-a", "pool": "n1"})
    theirs["metadata"]["namespace"] = "tenants"
    theirs["spec"]["devices"]["config"] = [parameters()]
    theirs["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", **parameters()}]
    theirs["status"]["devices"] = [{"driver": "other.example.com", "pool": "p", "device": "d", "data": PLACE}]
    fake_api.put("resourceclaims", theirs)
    fake_api.put("resourceclaims", claim(make_request(expression=model("A")), name="waits"))
    fake_api.put("resourceclaims", claim(make_request(expression=model("B")), name="fits"))
    return fake_api


@pytest.fixture
def command(fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--kubeconfig", str(path)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize("text", list(BAD))
def test_explain_of_another_claim_is_right_and_has_a_note(cluster: FakeApi, command: Command, text: str) -> None:
    cluster.foreign = BAD[text]
    code, printed, _ = command("explain", "claim/waits", "-o", "json")
    answer = json.loads(printed)
    assert code == 1
    assert "tenants/theirs" in json.dumps(answer["nodes"])  # which holds the device
    assert any(note.startswith(NOTE) for note in answer["notes"])
    assert any(note.startswith("DeviceClass any: spec.config[]") for note in answer["notes"])
    _, printed, _ = command("explain", "claim/fits")
    assert "its devices are free on node n1" in printed
    assert NOTE in printed


def test_capacity_is_right_and_has_a_note(cluster: FakeApi, command: Command) -> None:
    code, printed, _ = command("capacity", "claim/fits", "-o", "json")
    answer = json.loads(printed)
    assert (code, answer["total"]) == (0, 1)
    assert any(note.startswith(NOTE) for note in answer["notes"])
    assert NOTE in command("capacity", "claim/fits")[1]


def test_claims_of_the_cluster_are_all_listed_and_have_a_note(cluster: FakeApi, command: Command) -> None:
    code, printed, errors = command("claims", "--all-nodes", "-o", "json")
    assert code == 0
    assert [row["claim"] for row in json.loads(printed)] == ["theirs"]
    assert f"note: {NOTE}" in errors


def test_a_claim_that_cannot_be_read_is_not_reported_as_missing(cluster: FakeApi, command: Command) -> None:
    bad = claim(make_request(), name="bad")
    cluster.put("resourceclaims", {**bad, "spec": {"devices": PLACE}})
    code, _, errors = command("explain", "claim/bad")
    assert code == 1
    assert "ResourceClaim default/bad cannot be read" in errors
    assert command("explain", "claim/absent")[0] == 2


@pytest.mark.parametrize("text", [name for name in BAD if name != "bytes"])
def test_a_dump_is_read_whatever_a_driver_defines(
    cluster: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    kinds = {"resourceslices": "ResourceSlice", "deviceclasses": "DeviceClass", "resourceclaims": "ResourceClaim"}
    items = [
        {"apiVersion": "resource.k8s.io/v1", "kind": kind, **item}
        for plural, kind in kinds.items()
        for item in cluster.objects(plural)
    ]
    written = json.dumps({"kind": "List", "items": items}, indent=2).encode().replace(f'"{PLACE}"'.encode(), BAD[text])
    (tmp_path / "dump.json").write_bytes(written)
    code = main(["explain", "claim/waits", "--from", str(tmp_path / "dump.json"), "-o", "json"])
    printed = capsys.readouterr()
    answer: dict[str, Any] = json.loads(printed.out)
    assert code == 1
    assert any("ResourceClaim theirs: " in note for note in answer["notes"])
    assert "tenants/theirs" in json.dumps(answer["nodes"])
