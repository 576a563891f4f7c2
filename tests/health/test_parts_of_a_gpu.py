"""MIG instances: events of one, issues of all, and instances that could not be observed."""

from __future__ import annotations

import msgspec
import pytest

from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.model import Device, DeviceEvent, Inventory
from health.conftest import DRIVER, Clock, gpu, inventory, taints, xid

SETTINGS = HealthSettings(recovery_seconds=60, event_seconds=300)


def parts(*names: str) -> Inventory:
    return inventory(*(msgspec.structs.replace(gpu(), name=name) for name in names), gpu(1))


def causes(found: Inventory) -> dict[str, list[str]]:
    return {
        device.name: [taint.key.removeprefix(f"{DRIVER}/") for taint in device.taints]
        for device in found.devices
        if device.taints
    }


def xid_of(code: int, *names: str) -> DeviceEvent:
    return msgspec.structs.replace(xid(code), devices=names)


@pytest.fixture
def monitor(clock: Clock) -> Monitor:
    return Monitor(SETTINGS, DRIVER, clock=clock)


def test_an_xid_of_an_instance_taints_that_instance_only_and_for_as_long_as_any(monitor: Monitor, clock: Clock) -> None:
    three = parts("gpu-0-mig-0", "gpu-0-mig-1", "gpu-0-mig-2")
    monitor.observe(three)
    assert causes(monitor.record_events([xid_of(94, "gpu-0-mig-1")], three)) == {"gpu-0-mig-1": ["xid-94"]}
    clock.now += 300
    assert causes(monitor.record_events([], three)) == {}


@pytest.mark.parametrize("code", [48, 79, 95, 119])
def test_an_xid_that_is_about_the_gpu_taints_all_instances(monitor: Monitor, code: int) -> None:
    two = parts("gpu-0-mig-0", "gpu-0-mig-1")
    monitor.observe(two)
    found = causes(monitor.record_events([xid_of(code, "gpu-0-mig-1")], two))
    assert found == {"gpu-0-mig-0": [f"xid-{code}"], "gpu-0-mig-1": [f"xid-{code}"]}


def test_an_xid_without_an_instance_taints_all(monitor: Monitor) -> None:
    two = parts("gpu-0-mig-0", "gpu-0-mig-1")
    assert causes(monitor.record_events([xid_of(94)], two)).keys() == {"gpu-0-mig-0", "gpu-0-mig-1"}


def test_operators_set_the_severity_of_issues(clock: Clock) -> None:
    settings = HealthSettings(ignored_xids=(94,), gpu_xids=(31,), fatal_xids=(13,))
    monitor = Monitor(settings, DRIVER, clock=clock)
    two = parts("gpu-0-mig-0", "gpu-0-mig-1")
    assert causes(monitor.record_events([xid_of(94, "gpu-0-mig-1")], two)) == {}
    assert causes(monitor.record_events([xid_of(13, "gpu-0-mig-1")], two)) == {"gpu-0-mig-1": ["xid-13"]}
    assert causes(monitor.record_events([xid_of(31, "gpu-0-mig-1")], two)) == {
        "gpu-0-mig-0": ["xid-31"],
        "gpu-0-mig-1": ["xid-13", "xid-31"],
    }, "the fatal one is first"


def test_a_library_that_is_silent_ends_nothing(monitor: Monitor, clock: Clock) -> None:
    monitor.observe(inventory(gpu(0, "gpu-lost")))
    clock.now += 5
    monitor.observe(inventory(gpu(0, "gpu-lost")))
    silent = inventory(gpu(0, health="unmonitored"))
    for _ in range(10):
        clock.now += 60
        assert ("gpu-lost", "NoExecute") in taints(monitor.observe(silent)), "its return was not observed"
    monitor.observe(inventory(gpu(0)))
    clock.now += 60
    assert taints(monitor.observe(inventory(gpu(0)))) == []


def corrected(count: int) -> Inventory:
    device: Device = msgspec.structs.replace(gpu(), corrected_errors=count)
    return inventory(device)


def test_corrected_errors_count_with_a_configured_threshold(clock: Clock) -> None:
    monitor = Monitor(HealthSettings(corrected_errors_per_hour=10), DRIVER, clock=clock)
    silent = Monitor(HealthSettings(), DRIVER, clock=clock)
    for count, expected in ((500, []), (509, []), (510, [("ecc-corrected", "NoSchedule")])):
        clock.now += 60
        assert taints(monitor.observe(corrected(count))) == expected
        assert taints(silent.observe(corrected(count))) == []
    clock.now += 3600
    assert taints(monitor.observe(corrected(515))) == [], "another hour, and few of them"
    assert taints(monitor.observe(corrected(3))) == [], "a driver that was loaded again begins at 0"
    assert taints(monitor.observe(corrected(8))) == [("ecc-corrected", "NoSchedule")], "five before, and five since"
