"""The recovery that NVIDIA's driver requests decides on a GPU's health, independent of its XIDs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import dra_simulate
from dra_agent.agent.device_state import DeviceState
from dra_agent.health.hysteresis import CONFIRM_AFTER_S
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.nvidia.recovery import evaluate_recovery
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import Uevent
from dra_simulate import inject, nvml
from eventually import DEADLINE_S

DRIVER = "dra-agent.internal"
UNLISTED_XID, IGNORED_XID = 31337, 109


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Driver 615."""
    return dra_simulate.build("hgx-h200", tmp_path_factory.mktemp("host") / "hgx")


@pytest.fixture
def root(host: Host) -> Iterator[Path]:
    yield host.sysfs.parent
    inject.reset(host.sysfs.parent, "0")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hardware(host: Host, root: Path, clock: Clock) -> Iterator[DeviceState]:
    made = DeviceState(
        host,
        InventorySettings(nvml_timeout=DEADLINE_S),
        node="node-a",
        driver=DRIVER,
        monitor=Monitor(HealthSettings(recovery_seconds=60, event_seconds=300), DRIVER, clock=clock),
    )
    yield made
    made.close()


def causes(hardware: DeviceState, number: int = 0) -> list[str]:
    device = hardware.inventory.family("gpu")[number]
    return sorted(taint.key.removeprefix(f"{DRIVER}/") for taint in device.taints)


@pytest.mark.parametrize("action", ["reset", "reboot", "drain-p2p", "drain-and-reset", "bus-reset", "system-reboot"])
@pytest.mark.parametrize("xid", [UNLISTED_XID, IGNORED_XID])
def test_a_gpu_stays_tainted_for_as_long_as_the_driver_requests_a_recovery(
    hardware: DeviceState, root: Path, clock: Clock, action: str, xid: int
) -> None:
    inject.xid(root, "0", xid)
    inject.recovery(root, "0", inject.RECOVERY_ACTIONS[action])
    assert hardware.poll_events()
    assert "reset-required" in causes(hardware), "at once, not at the next scan"
    assert "xid-154" not in causes(hardware), "it is about the action, which is read"
    clock.now += 1000
    hardware.refresh([], rescan=False)
    assert causes(hardware) == ["reset-required"], "the XID is over, the GPU is not recovered"
    inject.recovery(root, "0", 0)
    hardware.poll_events()
    clock.now += 60
    hardware.refresh([], rescan=False)
    assert causes(hardware) == []
    assert causes(hardware, 1) == []


def test_an_event_of_the_recovery_action_alone_is_enough(hardware: DeviceState, root: Path) -> None:
    uuid = nvml.read(root / "lib").devices[0].uuid
    inject.load(root, uuid, recovery_action=1)
    inject.event(root, "0", inject.RECOVERY_EVENT)
    assert hardware.poll_events()
    assert causes(hardware) == ["reset-required"]


def test_an_event_that_the_refresh_after_a_uevent_takes_is_enough(hardware: DeviceState, root: Path) -> None:
    uuid = nvml.read(root / "lib").devices[0].uuid
    inject.load(root, uuid, recovery_action=1)
    inject.event(root, "0", inject.RECOVERY_EVENT)
    assert hardware.refresh([event_of_a_nic(hardware)], rescan=False, everything=False)
    assert causes(hardware) == ["reset-required"]


def test_uevents_do_not_postpone_the_confirmation_of_a_lost_gpu(
    hardware: DeviceState, root: Path, clock: Clock
) -> None:
    """The library is not polled while uevents arrive one after the other."""
    inject.fail(root, None, 15, hardware.inventory.family("gpu")[0].identity["uuid"])
    uevent = event_of_a_nic(hardware)

    def effects() -> list[str]:
        return [taint.effect for taint in hardware.inventory.family("gpu")[0].taints]

    hardware.refresh([], rescan=False)
    assert effects() == ["NoSchedule"], "one observation evicts nothing"
    clock.now += CONFIRM_AFTER_S
    hardware.refresh([uevent], rescan=False, everything=False)
    inject.clear(root)
    assert effects() == ["NoExecute"]


def event_of_a_nic(hardware: DeviceState) -> Uevent:
    folder = hardware.host.sysfs / "bus/pci/devices" / hardware.inventory.family("nic")[0].pci_address
    return Uevent("change", f"/{folder.resolve().relative_to(hardware.host.sysfs)}", "pci")


@pytest.mark.parametrize(
    ("kind", "cause"), [(0x800, "row-remap-failed"), (0x1000, "memory-poison"), (0x2000, "memory-poison")]
)
def test_events_of_newer_drivers_are_causes(
    hardware: DeviceState, root: Path, clock: Clock, kind: int, cause: str
) -> None:
    inject.event(root, "0", kind)
    assert hardware.poll_events()
    assert causes(hardware) == [cause]


def test_an_unavailable_gpu_is_a_cause(hardware: DeviceState, root: Path) -> None:
    inject.event(root, "1", 0x4000)
    assert hardware.poll_events()
    assert causes(hardware, 1) == ["gpu-unavailable"]


def test_a_recovery_of_the_imex_domain_leaves_the_gpu_to_jobs_of_one_node(hardware: DeviceState, root: Path) -> None:
    inject.recovery(root, "0", inject.RECOVERY_ACTIONS["recover-imex"])
    hardware.poll_events()
    assert causes(hardware) == []
    (problem,) = hardware.inventory.problems
    assert "IMEX domain" in problem.message


def test_an_action_of_a_newer_driver_is_named_once_and_counts(
    hardware: DeviceState, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inject.recovery(root, "0", 42)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            hardware.refresh([], rescan=False)
    assert causes(hardware) == ["reset-required"]
    assert len([record for record in caplog.records if "recovery action 42" in record.getMessage()]) == 1


def test_drivers_before_565_have_neither_the_field_nor_the_events(tmp_path: Path) -> None:
    host = dra_simulate.build("vm-1gpu", tmp_path / "vm")
    root = tmp_path / "vm"
    state = nvml.read(root / "lib")
    nvml.write(root / "lib", msgspec.structs.replace(state, driver=nvml.Driver("535.183.06", "12.535.183.06", 12020)))
    hardware = DeviceState(host, InventorySettings(nvml_timeout=DEADLINE_S), node="node-a", driver=DRIVER)
    try:
        inject.recovery(root, "0", 1)
        hardware.poll_events()
        assert causes(hardware) == []
        inject.xid(root, "0", 48)
        assert hardware.poll_events()
        assert causes(hardware) == ["xid-48"]
    finally:
        hardware.close()


@pytest.mark.parametrize(
    ("action", "driver", "reason"),
    [
        (None, "615.71.05", ""),
        (0, "615.71.05", ""),
        (5, "615.71.05", ""),
        (5, "580.95.05", "reset through its bus"),
        (7, None, "a restart of the whole system"),
    ],
)
def test_meanings_depend_on_the_driver(action: int | None, driver: str | None, reason: str) -> None:
    found, _ = evaluate_recovery(action, driver, "gpu")
    assert reason in found and bool(found) == bool(reason)
