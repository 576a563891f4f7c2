"""GPUs that are not registered with their NVLink fabric, or whose fabric is degraded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pynvml
import pytest

from dra_agent import simulate
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.nvidia.fabric import judge_fabric, read_fabric
from dra_agent.inventory.settings import InventorySettings
from dra_agent.simulate import inject
from dra_agent.simulate.machine import Machine
from dra_agent.simulate.profiles import load_profile
from dra_agent.topology import scan
from eventually import DEADLINE_S

DRIVER = "dra-agent.internal"
GRACE_S = 120.0
DRIVERS = ("570.124.06", "580.126.16", "615.71.05")
"""With version 2, 3 and 4 of the structure."""
VERSION_4 = DRIVERS[2]
NOT_FOUND, MISMATCH, UNKNOWN = 13, 25, 999
"""Of nvmlReturn_t: FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH."""
CLUSTER, CLIQUE = "b7a1b0f0-0000-4000-8000-00000000beef", 32766


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def with_driver(profile: str, version: str) -> Machine:
    machine = load_profile(profile)
    assert machine.nvidia is not None
    return replace(machine, nvidia=replace(machine.nvidia, version=version))


@pytest.fixture(scope="module", params=DRIVERS)
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host with eight GPUs, and a driver of each version of the fabric's structure."""
    return simulate.build_machine(with_driver("hgx-h200", request.param), tmp_path_factory.mktemp("host") / "host")


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
    silent = msgspec.structs.replace(first(starting), issues=(), health="unmonitored")
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
        ("global-manager", "fabric-degraded", "the global fabric manager is disconnected"),
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
        assert {device.issues for device in collector.collect(scan(host)).family("gpu")} == {()}
    finally:
        collector.close()


@pytest.fixture(params=DRIVERS)
def rack(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Four GPUs of a fabric of many hosts."""
    return simulate.build_machine(with_driver("gb200-nvl", request.param), tmp_path / "rack")


def registered(host: Host) -> set[tuple[object, ...]]:
    inventory = collect(host, scan(host), InventorySettings(nvml_timeout=DEADLINE_S))
    assert inventory.problems == ()
    return {
        tuple(one.attributes[name].value for name in ("fabricDomain", "fabricClique") if name in one.attributes)
        for one in inventory.family("gpu")
    }


def test_every_version_reports_the_same_domain_and_clique(rack: Host) -> None:
    """Version 4 has a clique for each type, of which the first is that of older versions."""
    ((domain, clique),) = registered(rack)
    assert clique == CLIQUE and len(str(domain)) == 36


def test_a_driver_that_removed_the_older_versions_reports_the_same(tmp_path: Path) -> None:
    host = simulate.build_machine(with_driver("gb200-nvl", VERSION_4), tmp_path / "rack")
    before = registered(host)
    inject.fail(tmp_path / "rack", "nvmlDeviceGetGpuFabricInfoV", MISMATCH)
    assert registered(host) == before and before != {()}
    inject.fail(tmp_path / "rack", "nvmlDeviceGetGpuFabricInfo_v4", MISMATCH)
    assert registered(host) == {()}


def test_a_library_without_version_4_is_asked_for_the_older_one(tmp_path: Path) -> None:
    host = simulate.build_machine(with_driver("gb200-nvl", VERSION_4), tmp_path / "rack")
    before = registered(host)
    inject.fail(tmp_path / "rack", "nvmlDeviceGetGpuFabricInfo_v4", NOT_FOUND)
    assert registered(host) == before and before != {()}


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_unexpected_error_is_reported_once(tmp_path: Path, driver: str) -> None:
    host = simulate.build_machine(with_driver("gb200-nvl", driver), tmp_path / "rack")
    inject.fail(tmp_path / "rack", "nvmlDeviceGetGpuFabricInfoV", UNKNOWN)
    if driver == VERSION_4:
        inject.fail(tmp_path / "rack", "nvmlDeviceGetGpuFabricInfo_v4", UNKNOWN)
    inventory = collect(host, scan(host), InventorySettings(nvml_timeout=DEADLINE_S))
    assert [device.health for device in inventory.family("gpu")] == ["healthy"] * 4
    assert len(inventory.problems) == 4
    assert all("nvmlDeviceGetGpuFabricInfoV" in problem.message for problem in inventory.problems)


@pytest.mark.parametrize(
    ("cliques", "count", "clique"),
    [
        ([(0, 7), (0, 8), (1, 9)], 3, 7),
        ([(1, 9), (2, 10), (3, 11)], 3, None),
        ([], 0, None),
        ([(1, 9), (0, 7)], 1, None),
        ([(200, 5), (0, 7)], 2, 7),
        ([(1, 5), (0, 7)], 0xFFFF_FFFF, 7),
    ],
)
def test_the_clique_is_the_first_of_unicast_pointers(
    cliques: list[tuple[int, int]], count: int, clique: int | None
) -> None:
    """`count` is the driver's, which may be too large."""

    def fill(name: str, reference: Any) -> int:
        assert name == "nvmlDeviceGetGpuFabricInfo_v4"
        info = reference._obj  # noqa: SLF001 - ctypes has no public way from a reference to its object
        info.state, info.clusterUuid[:], info.numCliques = 3, UUID(CLUSTER).bytes, count
        for entry, (kind, number) in zip(info.cliques, cliques, strict=False):
            entry.type, entry.id = kind, number
        return 0

    found = read_fabric(pynvml, VERSION_4, fill, fill)
    assert (found.domain, found.clique, found.issues, found.unknown) == (CLUSTER, clique, (), "")


def test_values_of_a_newer_driver_are_named_and_harm_nothing() -> None:
    found = judge_fabric(9, 0, 0, 0, bytes(16), 0)
    assert (found.issues, found.unknown) == ((), "fabric state 9")
    (issue,) = judge_fabric(3, 0, 0xC << 8, 0, bytes(16), 0).issues
    assert "reason 12" in issue.message
    (issue,) = judge_fabric(3, 0, 1 << 30, 2, bytes(16), 0).issues
    assert issue.cause == "fabric-degraded" and "reports it as unhealthy" in issue.message
