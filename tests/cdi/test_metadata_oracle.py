"""Upstream's own reader takes the metadata files of every device of every simulated host, without one unknown field."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dra_agent import simulate
from dra_agent.cdi.metadata import ClaimMetadata, MetadataDirectory, RequestMetadata
from dra_agent.claim import ClaimRef
from dra_agent.inventory import Device, collect, pool_name
from dra_agent.topology import scan
from oracle import go

SOURCE = Path(__file__).resolve().parents[1] / "oracle" / "metadata"
DRIVER = "dra-agent.internal"


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle's program."""
    return go.build(SOURCE, tmp_path_factory.mktemp("oracle") / "metadata")


def read(upstream: Path, *files: Path) -> list[dict[str, Any]]:
    done = subprocess.run([upstream, *files], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def describe(directory: MetadataDirectory, uid: str, devices: list[Device], pod_claim_name: str | None = None) -> Path:
    claim = ClaimRef(uid, "team-a", "training-gpu-x7k2p")
    held = tuple((pool_name("node-1", device.family), device) for device in devices)
    directory.ensure(ClaimMetadata(claim, pod_claim_name, (RequestMetadata("gpu", "gpu/h100", held),)))
    return directory.file(uid, "gpu")


@pytest.mark.parametrize("profile", simulate.profiles())
def test_upstream_reads_what_every_device_is(upstream: Path, profile: str, tmp_path: Path) -> None:
    host = simulate.build(profile, tmp_path / "root")
    devices = list(collect(host, scan(host)).devices)
    directory = MetadataDirectory(tmp_path / "metadata", DRIVER)
    files = [describe(directory, f"uid-{device.name}", [device]) for device in devices]
    files.append(describe(directory, "uid-all", devices, "my-gpu"))
    answers = read(upstream, *files)
    assert [answer.get("error") for answer in answers] == [None] * len(files)
    assert {answer["version"] for answer in answers} == {"metadata.resource.k8s.io/v1beta1"}
    *single, together = (answer["document"] for answer in answers)
    assert together["podClaimName"] == "my-gpu" and "podClaimName" not in single[0]
    for device, document in zip(devices, single, strict=True):
        assert document["metadata"] == {
            "name": "training-gpu-x7k2p",
            "namespace": "team-a",
            "uid": f"uid-{device.name}",
            "generation": 1,
        }
        (request,) = document["requests"]
        (told,) = request["devices"]
        assert request["name"] == "gpu/h100"
        assert (told["driver"], told["pool"], told["name"]) == (DRIVER, f"node-1/{device.family}", device.name)
        assert told["attributes"] == device.to_api()["attributes"], "nothing is lost and nothing changed on the way"
        if "ifname" in device.identity:
            assert told["networkData"]["interfaceName"] == device.identity["ifname"]
    assert together["requests"][0]["devices"] == [document["requests"][0]["devices"][0] for document in single]


def test_the_oracle_refuses_what_upstream_would_not_take(upstream: Path, tmp_path: Path) -> None:
    good = describe(MetadataDirectory(tmp_path / "metadata", DRIVER), "uid-1", [device()]).read_text()
    bad = {
        "unknown field": good.replace('"pool"', '"pools"'),
        "two values": good.replace('"string": "x"', '"string": "x", "int": 1'),
        "unknown version": good.replace("v1beta1", "v9"),
        "torn": good[: len(good) // 2],
    }
    paths = []
    for name, text in bad.items():
        assert text != good
        paths.append(tmp_path / name)
        paths[-1].write_text(text)
    assert all("error" in answer for answer in read(upstream, *paths))


def device() -> Device:
    from dra_agent.inventory import Attribute

    return Device("gpu-0", "gpu", "amd", "0000:01:00.0", attributes={"model": Attribute.of("x")})
