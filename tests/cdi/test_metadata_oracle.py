"""Upstream's own reader accepts the metadata files of every device of every simulated host, without unknown fields."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from dra_agent.cdi.metadata import ClaimMetadata, MetadataDirectory, RequestMetadata
from dra_agent.claim import ClaimRef
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, pool_name
from dra_agent.topology import scan
from oracle import go

SOURCE = Path(__file__).resolve().parents[1] / "oracle" / "metadata"
DRIVER = "dra-agent.internal"


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The binary of the oracle."""
    return go.build(SOURCE, "metadata")


def read(upstream: Path, *files: Path) -> list[dict[str, Any]]:
    completed = subprocess.run([upstream, *files], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in completed.stdout.splitlines()]


def describe(directory: MetadataDirectory, uid: str, devices: list[Device], pod_claim_name: str | None = None) -> Path:
    claim = ClaimRef(uid, "team-a", "training-gpu-x7k2p")
    devices_with_pools = tuple((pool_name("node-1", device.family), device) for device in devices)
    directory.ensure(ClaimMetadata(claim, pod_claim_name, (RequestMetadata("gpu", "gpu/h100", devices_with_pools),)))
    return directory.file(uid, "gpu")


@pytest.mark.parametrize("profile", dra_simulate.profiles())
def test_upstream_reads_the_metadata_of_every_device(upstream: Path, profile: str, tmp_path: Path) -> None:
    host = dra_simulate.build(profile, tmp_path / "root")
    devices = list(collect(host, scan(host)).devices)
    directory = MetadataDirectory(tmp_path / "metadata", DRIVER)
    files = [describe(directory, f"uid-{device.name}", [device]) for device in devices]
    files.append(describe(directory, "uid-all", devices, "my-gpu"))
    results = read(upstream, *files)
    assert [result.get("error") for result in results] == [None] * len(files)
    assert {result["version"] for result in results} == {"metadata.resource.k8s.io/v1beta1"}
    *single, together = (result["document"] for result in results)
    assert together["podClaimName"] == "my-gpu" and "podClaimName" not in single[0]
    for device, document in zip(devices, single, strict=True):
        assert document["metadata"] == {
            "name": "training-gpu-x7k2p",
            "namespace": "team-a",
            "uid": f"uid-{device.name}",
            "generation": 1,
        }
        (request,) = document["requests"]
        (metadata,) = request["devices"]
        assert request["name"] == "gpu/h100"
        assert (metadata["driver"], metadata["pool"], metadata["name"]) == (
            DRIVER,
            f"node-1/{device.family}",
            device.name,
        )
        assert metadata["attributes"] == device.to_api()["attributes"], "the attributes are complete and unchanged"
        if "ifname" in device.identity:
            assert metadata["networkData"]["interfaceName"] == device.identity["ifname"]
    assert together["requests"][0]["devices"] == [document["requests"][0]["devices"][0] for document in single]


def test_the_oracle_refuses_invalid_metadata(upstream: Path, tmp_path: Path) -> None:
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
    assert all("error" in result for result in read(upstream, *paths))


def device() -> Device:
    from dra_agent.inventory.api import Attribute

    return Device("gpu-0", "gpu", "amd", "0000:01:00.0", attributes={"model": Attribute.of("x")})
