"""Every simulated host, as the inventory sees it, held against the API's limits and the documented names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dra_simulate
from dra_agent import _native
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.rules import BUILT_IN
from dra_agent.topology import scan

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "reference" / "attributes.md"

EVERY_DEVICE = {
    "type",
    "vendor",
    "vendorID",
    "deviceID",
    "driver",
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/pciBusID",
}

# Devices of each family, from the profiles' descriptions.
EXPECTED = {
    "cpu-only": {"nic": 2},
    "dgx-h100": {"gpu": 8, "nic": 10},
    "hgx-h200": {"gpu": 8, "nic": 10},
    "dgx-spark": {"gpu": 1},
    "a30": {"gpu": 4},
    "a100-40gb": {"gpu": 8},
    "h100-nvl": {"gpu": 4},
    "h100-pcie": {"gpu": 4},
    "gh200-144g": {"gpu": 1},
    "b200": {"gpu": 8},
    "rtx-pro-6000": {"gpu": 8},
    "mi300x": {"gpu": 8, "nic": 10},
    "mi300x-linux-6.18": {"gpu": 8, "nic": 10},
    "mi308x": {"gpu": 8, "nic": 10},
    "mi350x": {"gpu": 8, "nic": 10},
    "mi355x": {"gpu": 8, "nic": 10},
    "mi300x-vf": {"gpu": 8, "nic": 1},
    "mi300a": {"gpu": 4, "nic": 1},
    # Each card is two GPUs.
    "mi250x": {"gpu": 8, "nic": 1},
    "mi210": {"gpu": 8, "nic": 1},
    "strix-halo": {"gpu": 2},
    # Three whole GPUs, and the fourth as its virtual functions, one of them given to virtual machines.
    "flex170": {"gpu": 7, "nic": 2},
    "arc-b60": {"gpu": 5, "nic": 1},
    "gb200-nvl": {"gpu": 4, "nic": 8},
    "dgx-2": {"gpu": 16},
    "azure-ndv5": {"gpu": 8, "nic": 8},
    "aws-p4d": {"gpu": 8, "nic": 5},
    # Two B70 and a B65, and a B50 as its two virtual functions.
    "arc-pro": {"gpu": 5, "nic": 1},
    # The adapter with virtual functions is not published beside them.
    "l40s": {"gpu": 4, "nic": 5},
    # The host is reached through one of its four.
    "connectx-3": {"nic": 3},
    "trn1": {"nic": 16, "accelerator": 16},
    "trn2": {"nic": 17, "accelerator": 16},
    "gaudi3": {"nic": 1, "accelerator": 8},
    # One device per card of three functions.
    "alveo-v80": {"nic": 3, "fpga": 2},
    "mixed": {"gpu": 3, "nic": 3, "fpga": 2, "accelerator": 1},
    "vm-1gpu": {"gpu": 1, "nic": 1},
}


@pytest.fixture(scope="module", params=dra_simulate.profiles())
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Host]]:
    yield request.param, dra_simulate.build(request.param, tmp_path_factory.mktemp("host") / "root")


@pytest.fixture(scope="module")
def inventory(host: tuple[str, Host]) -> Inventory:
    return collect(host[1], scan(host[1]))


def problems_of(devices: list[Device]) -> list[object]:
    """Return the errors of the API server for slices with these devices."""
    found: list[object] = []
    for start in range(0, len(devices), 64):
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "node-gpu"},
            "spec": {
                "driver": "dra-agent.internal",
                "nodeName": "node",
                "pool": {"name": "node/gpu", "generation": 1, "resourceSliceCount": 1},
                "devices": [device.to_api() for device in devices[start : start + 64]],
            },
        }
        found += json.loads(_native.validate_object(json.dumps(document).encode()))
    return found


def test_every_device_is_one_that_the_api_takes(inventory: Inventory) -> None:
    assert problems_of(list(inventory.devices)) == []
    names = [device.name for device in inventory.devices]
    assert len(set(names)) == len(names)


def test_the_check_itself_finds_errors() -> None:
    document = Device("gpu-1", "gpu", "amd", "0000:01:00.0", {}).to_api()
    assert problems_of([Device("gpu-1", "gpu", "amd", "0000:01:00.0", {})]) == []
    assert problems_of([Device("gpu-1", "gpu", "amd", "0000:01:00.0", {})] * 2) != []
    assert document == {"name": "gpu-1"}


def test_attributes_are_documented_and_never_made_up(inventory: Inventory) -> None:
    text = DOCUMENTED.read_text()
    for device in inventory.devices:
        assert set(device.attributes) >= EVERY_DEVICE
        for name, attribute in device.attributes.items():
            assert f"`{name}`" in text, name
            assert name in BUILT_IN or name.startswith("resource.kubernetes.io/"), name
            assert attribute.value not in (-1, "", "unknown", "N/A"), name
        for name in device.capacity:
            assert f"capacity `{name}`" in text.replace("the\ncapacity", "capacity"), name
            assert name in BUILT_IN, name


def test_devices_are_those_of_the_machine(host: tuple[str, Host], inventory: Inventory) -> None:
    profile = host[0]
    assert inventory.problems == ()
    counts: dict[str, int] = {}
    for device in inventory.devices:
        counts[device.family] = counts.get(device.family, 0) + 1
    assert counts == EXPECTED[profile]
    for device in inventory.family("gpu"):
        if device.attributes["type"].value == "vfio":
            continue  # no driver of the vendor reports it
        if profile == "dgx-spark":
            assert "memory" not in device.capacity, "its GPU uses the memory of the CPU"
            continue
        assert device.capacity.get("memory") is not None, device.name
        assert re.fullmatch(r"[1-9]\d*(Ki|Mi|Gi|Ti)?", device.capacity["memory"].value)


def test_device_nodes_of_containers_exist(inventory: Inventory) -> None:
    for device in inventory.devices:
        for node in device.nodes:
            assert Path(node.host_path).exists(), f"{device.name}: {node.path}"
        if device.family in ("gpu", "accelerator"):
            assert device.nodes, device.name


def test_taking_it_again_gives_the_same(host: tuple[str, Host], inventory: Inventory) -> None:
    assert collect(host[1], scan(host[1])) == inventory


@pytest.mark.parametrize(
    ("profile", "switches", "gpus", "nics"),
    [
        pytest.param("hgx-h200", 4, 2, 2, id="two of each per switch"),
        pytest.param("dgx-h100", 8, 1, 1, id="one of each per switch"),
    ],
)
def test_gpus_and_nics_below_one_switch_have_its_address(
    profile: str, switches: int, gpus: int, nics: int, tmp_path: Path
) -> None:
    built = dra_simulate.build(profile, tmp_path / "root")
    below: dict[object, list[str]] = {}
    for device in collect(built, scan(built)).devices:
        if device.family in ("gpu", "nic") and "pcieSwitch" in device.attributes:
            below.setdefault(device.attributes["pcieSwitch"].value, []).append(device.family)
    assert len(below) == switches
    assert {tuple(sorted(families)) for families in below.values()} == {("gpu",) * gpus + ("nic",) * nics}
