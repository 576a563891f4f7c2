"""A driver that is newer than the agent, and GPUs with less than others: what is known of them is published."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dra_simulate
from dra_agent.agent.device_state import DeviceState
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.gpu_info import ARCHITECTURES
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan
from dra_simulate import inject, nvml
from dra_simulate.models import BLACKWELL
from eventually import DEADLINE_S

SETTINGS = InventorySettings(nvml_timeout=DEADLINE_S)
VERSION_MISMATCH = 25


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return dra_simulate.build("vm-1gpu", tmp_path / "vm")


@pytest.fixture
def root(host: Host) -> Iterator[Path]:
    yield host.sysfs.parent
    inject.clear(host.sysfs.parent)


def with_values(root: Path, **values: Any) -> None:
    state = nvml.read(root / "lib")
    devices = tuple(msgspec.structs.replace(device, **values) for device in state.devices)
    nvml.write(root / "lib", msgspec.structs.replace(state, devices=devices))


def only_gpu(host: Host) -> Device:
    (device,) = collect(host, scan(host), SETTINGS).family("gpu")
    return device


@pytest.mark.parametrize(
    ("values", "named", "missing"),
    [
        ({"brand": 77}, "brand 77", "brand"),
        ({"architecture": 99}, "architecture 99", "architecture"),
        ({"compute_capability": (42, 7)}, "compute capability 42.7", "multiprocessors"),
    ],
)
def test_an_unknown_value_is_named_once_and_the_gpu_is_published(
    host: Host, root: Path, caplog: pytest.LogCaptureFixture, values: dict[str, Any], named: str, missing: str
) -> None:
    with_values(root, **values)
    with caplog.at_level(logging.WARNING):
        hardware = DeviceState(host, SETTINGS, node="node-a", driver="dra-agent.internal")
        try:
            for _ in range(3):
                hardware.refresh([], rescan=False)
            (device,) = hardware.inventory.family("gpu")
        finally:
            hardware.close()
    assert device.health == "healthy"
    assert missing not in {**device.attributes, **device.capacity}
    assert device.attributes["productName"].value == "Tesla T4" and device.capacity["memory"]
    assert len([record for record in caplog.records if named in record.getMessage()]) == 1


@pytest.mark.parametrize("value", [0, 0xFFFF_FFFF])
def test_values_that_nvml_calls_unknown_are_ignored(host: Host, root: Path, value: int) -> None:
    with_values(root, brand=0, architecture=value)
    inventory = collect(host, scan(host), SETTINGS)
    assert inventory.problems == ()
    assert not {"brand", "architecture"} & inventory.family("gpu")[0].attributes.keys()


def test_an_unknown_error_names_its_number(host: Host, root: Path) -> None:
    inject.fail(root, "nvmlDeviceGetBrand", 4711)
    inventory = collect(host, scan(host), SETTINGS)
    (problem,) = inventory.problems
    assert "error 4711" in problem.message
    assert inventory.family("gpu")[0].health == "healthy"


def test_a_structure_of_another_version_costs_its_values_only(host: Host, root: Path) -> None:
    for function in ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo"):
        inject.fail(root, function, VERSION_MISMATCH)
    device = only_gpu(host)
    assert device.health == "healthy" and device.attributes["uuid"].value
    assert "memory" not in device.capacity


def test_a_gpu_without_its_own_memory_is_published_without_memory(tmp_path: Path) -> None:
    host = dra_simulate.build("dgx-spark", tmp_path / "spark")
    inventory = collect(host, scan(host), SETTINGS)
    assert inventory.problems == ()
    (device,) = inventory.family("gpu")
    assert (device.health, device.pci_address) == ("healthy", "000f:01:00.0")
    assert {name: value.value for name, value in device.capacity.items()} == {"multiprocessors": "48"}
    assert device.attributes["architecture"].value == ARCHITECTURES[BLACKWELL]
    assert device.attributes["cudaComputeCapability"].value == "12.1.0"


@pytest.mark.parametrize(
    ("capability", "cores", "multiprocessors"),
    [
        # Jetson Thor: 2560 CUDA cores in 20 multiprocessors (NVIDIA's data sheet of the T5000).
        ((11, 0), 2560, 20),
        ((10, 1), 2560, 20),
        ((10, 3), 20480, 160),
        ((5, 2), 3072, 24),
    ],
)
def test_multiprocessors_follow_from_the_cores(
    host: Host, root: Path, capability: tuple[int, int], cores: int, multiprocessors: int
) -> None:
    with_values(root, compute_capability=capability, cores=cores)
    assert only_gpu(host).capacity["multiprocessors"].value == str(multiprocessors)
