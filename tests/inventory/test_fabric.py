"""GPUs that are not registered with their NVLink fabric, or whose fabric is degraded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dra_agent import simulate
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.nvidia.fabric import judge_fabric
from dra_agent.inventory.settings import InventorySettings
from dra_agent.simulate import inject
from dra_agent.topology import scan
from eventually import DEADLINE_S

GPU = "gpu-0000-1b-00-0"
DRIVER = "dra-agent.internal"
GRACE_S = 120.0


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module", params=["dgx-h100", "hgx-h200"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Drivers before and after version 3 of the fabric's structure."""
    return simulate.build(request.param, tmp_path_factory.mktemp("host") / "host")


@pytest.fixture
def root(host: Host) -> Iterator[Path]:
    root = host.sysfs.parent
    yield root
    inject.fabric(root, "0", "completed")


@pytest.fixture
def collector(host: Host) -> Iterator[Collector]:
    made = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))
    yield made
    made.close()


def first(inventory: Inventory) -> Device:
    return inventory.family("gpu")[0]


def causes(device: Device) -> list[tuple[str, str]]:
    return [(taint.key.removeprefix(f"{DRIVER}/"), taint.effect) for taint in device.taints]


@pytest.mark.parametrize("state", ["not-started", "in-progress"])
def test_a_gpu_that_does_not_register_is_tainted_after_a_grace_period(
    host: Host, root: Path, collector: Collector, state: str
) -> None:
    clock = Clock()
    monitor = Monitor(HealthSettings(fabric_grace_seconds=GRACE_S, recovery_seconds=60), DRIVER, None, clock)
    inject.fabric(root, "0", state)

    def observe() -> Inventory:
        return monitor.observe(collector.collect(scan(host)))

    young = observe()
    assert (causes(first(young)), first(young).health) == ([], "healthy"), "a GPU registers at every boot"
    assert "fabricDomain" not in first(young).attributes
    assert [problem.severity for problem in young.problems] == ["warning"]
    clock.now += GRACE_S - 1
    assert causes(first(observe())) == []
    clock.now += 1
    late = first(observe())
    assert (causes(late), late.health) == ([("fabric-not-ready", "NoSchedule")], "unhealthy")
    assert "CUDA fails" in (late.health_reason or "")
    inject.fabric(root, "0", "completed")
    assert causes(first(observe())) == [("fabric-not-ready", "NoSchedule")], "recovery takes its time"
    clock.now += 60
    recovered = observe()
    assert (causes(first(recovered)), first(recovered).health) == ([], "healthy")
    inject.fabric(root, "0", state)
    assert causes(first(observe())) == [], "a new registration has a new grace period"
    assert [device.health for device in recovered.family("gpu")] == ["healthy"] * 8


def test_a_grace_period_does_not_start_again_while_the_library_hangs_or_the_agent_restarts(
    host: Host, root: Path, collector: Collector
) -> None:
    clock = Clock()
    monitor = Monitor(HealthSettings(fabric_grace_seconds=GRACE_S), DRIVER, None, clock)
    inject.fabric(root, "0", "in-progress")
    starting = collector.collect(scan(host))
    monitor.observe(starting)
    clock.now += GRACE_S / 2
    silent = msgspec.structs.replace(first(starting), ailments=(), health="unmonitored")
    monitor.observe(msgspec.structs.replace(starting, devices=(silent,)))
    clock.now += GRACE_S / 2
    assert "fabric-not-ready" in [cause for cause, _ in causes(first(monitor.observe(starting)))]


def test_an_error_of_the_registration_counts_at_once(host: Host, root: Path, collector: Collector) -> None:
    inject.fabric(root, "0", "completed", status=999)
    found = first(Monitor(HealthSettings(), DRIVER, None, Clock()).observe(collector.collect(scan(host))))
    assert causes(found) == [("fabric-not-ready", "NoSchedule")]
    assert "error 999" in (found.health_reason or "")


@pytest.mark.parametrize(
    ("failure", "cause", "text"),
    [
        ("bandwidth", "fabric-degraded", "bandwidth is degraded"),
        ("route-recovery", "fabric-degraded", "a route is being recovered"),
        ("route-unhealthy", "fabric-degraded", "a route is unhealthy"),
        ("access-timeout", "fabric-degraded", "an access timeout"),
        ("firmware", "fabric-not-ready", "firmware is incompatible"),
        ("gpu-state", "fabric-not-ready", "the state of the GPU is invalid"),
    ],
)
def test_faults_of_the_fabric_are_issues(
    host: Host, root: Path, collector: Collector, failure: str, cause: str, text: str
) -> None:
    inject.fabric(root, "0", "completed", failures=[failure])
    found = first(Monitor(HealthSettings(), DRIVER, None, Clock()).observe(collector.collect(scan(host))))
    assert causes(found) == [(cause, "NoSchedule")]
    assert text in (found.health_reason or "")


def test_gpus_without_a_fabric_are_unaffected(tmp_path: Path) -> None:
    host = simulate.build("l40s", tmp_path / "host")
    inject.fabric(tmp_path / "host", "0", "in-progress")
    collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))
    try:
        assert {device.ailments for device in collector.collect(scan(host)).family("gpu")} == {()}
    finally:
        collector.close()


def test_values_of_a_newer_driver_are_named_and_harm_nothing() -> None:
    found = judge_fabric(9, 0, 0, 0, bytes(16), 0)
    assert (found.issues, found.unknown) == ((), "fabric state 9")
    (issue,) = judge_fabric(3, 0, 0xC << 8, 0, bytes(16), 0).issues
    assert "reason 12" in issue.message
    (issue,) = judge_fabric(3, 0, 1 << 30, 2, bytes(16), 0).issues
    assert issue.cause == "fabric-degraded" and "reports it as unhealthy" in issue.message
