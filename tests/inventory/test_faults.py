"""What back ends hear of devices besides their description: XIDs, memory errors, repairs, links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_agent.inventory.amd.backend import AmdBackend
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.nvidia.nvml_client import WHOLE, CallTimeoutError, NvmlClient
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import DeviceKind, PciFunction, scan
from dra_simulate import inject, nvml
from dra_simulate.tree import replace_file
from eventually import DEADLINE_S, eventually

GPU = "gpu-0000-1b-00-0"


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return dra_simulate.build("dgx-h100", tmp_path_factory.mktemp("host") / "dgx")


@pytest.fixture
def root(dgx: Host) -> Path:
    return dgx.sysfs.parent


@pytest.fixture
def collector(dgx: Host, root: Path) -> Iterator[Collector]:
    made = Collector(dgx, InventorySettings(nvml_timeout=DEADLINE_S))
    yield made
    inject.clear(root)
    condition(root, {})
    made.close()


def condition(root: Path, conditions: dict[str, nvml.Condition]) -> None:
    with nvml.locked(root / "lib"):
        state = nvml.read(root / "lib")
        state.conditions.clear()
        state.conditions.update(conditions)
        nvml.write(root / "lib", state)


def first(inventory: Inventory) -> Device:
    device = inventory.device(GPU)
    assert device is not None
    return device


def test_an_xid_is_reported_once_for_its_gpu(dgx: Host, root: Path, collector: Collector) -> None:
    inject.xid(root, "0000:1b:00.0", 63)  # before the first collection
    assert collector.faults() == []
    collector.collect(scan(dgx))
    assert collector.reports_events and collector.faults() == []
    inject.xid(root, "0000:1b:00.0", 79)
    inject.xid(root, "0000:43:00.0", 13)
    events = collector.faults()
    assert [(fault.pci_address, fault.cause) for fault in events] == [
        ("0000:1b:00.0", "xid-79"),
        ("0000:43:00.0", "xid-13"),
    ]
    assert "79" in events[0].message
    assert collector.faults() == []


def test_events_continue_after_a_gpu_was_lost_and_returned(dgx: Host, root: Path, collector: Collector) -> None:
    collector.collect(scan(dgx))
    inject.unplug(root, "0000:1b:00.0")
    assert [fault.cause for fault in collector.faults()] == ["xid-79"]
    collector.collect(scan(dgx))
    assert collector.faults() == []
    inject.replug(root, "0000:1b:00.0")
    assert first(collector.collect(scan(dgx))).health == "healthy"
    inject.xid(root, "0000:1b:00.0", 48)
    inject.xid(root, "0000:43:00.0", 48)
    assert sorted(fault.pci_address for fault in collector.faults()) == ["0000:1b:00.0", "0000:43:00.0"]


def test_a_hanging_event_call_makes_gpus_unmonitored_and_nothing_slow(
    dgx: Host, root: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.collect(scan(dgx))
    inject.hang(root, "nvmlEventSetWait_v2")
    call, hung = NvmlClient.call, []

    def impatient(
        library: NvmlClient, name: str, *arguments: Any, about: str = WHOLE, timeout: float | None = None
    ) -> Any:
        try:
            return call(
                library, name, *arguments, about=about, timeout=0.5 if name == "nvmlEventSetWait_v2" else timeout
            )
        except CallTimeoutError as error:
            hung.append(str(error))
            raise

    monkeypatch.setattr(NvmlClient, "call", impatient)
    assert collector.faults() == [] and collector.faults() == []
    assert sum("did not respond" in error for error in hung) == 1, "only the first one is waited for"
    monkeypatch.setattr(NvmlClient, "call", call)
    inventory = collector.collect(scan(dgx))
    assert {device.health for device in inventory.family("gpu")} == {"unmonitored"}
    assert "no events" in (first(inventory).health_reason or "")
    assert [problem.where for problem in inventory.problems] == ["NVML"]
    inject.clear(root)
    eventually(lambda: first(collector.collect(scan(dgx))).health == "healthy")
    inject.xid(root, "0000:1b:00.0", 94)
    assert [fault.cause for fault in collector.faults()] == ["xid-94"]


def test_repairs_and_errors_of_memory(dgx: Host, root: Path, collector: Collector) -> None:
    uuid = first(collector.collect(scan(dgx))).identity["uuid"]
    assert first(collector.collect(scan(dgx))).memory_errors == 0
    condition(root, {uuid: nvml.Condition(ecc_uncorrected=3, remapped_rows=(0, 1, 1, 0))})
    device = first(collector.collect(scan(dgx)))
    assert device.memory_errors == 3 and device.health == "unhealthy"
    assert [issue.cause for issue in device.issues] == ["reset-required"]
    condition(root, {uuid: nvml.Condition(remapped_rows=(0, 1, 0, 1))})
    assert [issue.cause for issue in first(collector.collect(scan(dgx))).issues] == ["row-remap-failed"]


def test_amd_counts_uncorrected_errors(
    host: Host, function: Callable[..., PciFunction], write: Callable[[str, object], None]
) -> None:
    gpu = function("0000:c1:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu")
    assert AmdBackend(host).devices([gpu], [])[0].memory_errors is None
    for block, errors in (("umc", 2), ("gfx", 1)):
        write(f"sys/bus/pci/devices/0000:c1:00.0/ras/{block}_err_count", f"ue: {errors}\nce: 17")
    write("sys/bus/pci/devices/0000:c1:00.0/ras/features", "feature mask: 0x7")
    (device,) = AmdBackend(host).devices([gpu], [])
    assert (device.memory_errors, device.corrected_errors) == (3, 34)


def test_a_link_that_is_switched_on_and_down_is_an_ailment(tmp_path: Path) -> None:
    from dra_agent.inventory.nic import NicBackend

    host = dra_simulate.build("hgx-h200", tmp_path / "hgx")
    functions = [device for device in scan(host).devices if device.net]
    function = functions[0]
    interface = host.sysfs / "bus/pci/devices" / function.pci_address / "net" / next(iter(function.net))

    def causes() -> list[str]:
        device = NicBackend(host).describe(function, None, [])
        return [issue.cause for issue in device.issues]

    replace_file(interface / "flags", b"0x1003\n")
    replace_file(interface / "carrier", b"1\n")
    assert causes() == []
    replace_file(interface / "carrier", b"0\n")
    assert causes() == ["link-down"]
    replace_file(interface / "flags", b"0x1002\n")
    assert causes() == [], "it was not switched on"
