"""What is known of a device's health while a claim has it at vfio-pci, and while it goes there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from deadlines import a_minute
from device_setup.vfio.bench import EVERYTHING, FPGA, GPU, Bench, Points, published
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.vfio import VfioConfig
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.passthrough import VfioBindingStore
from dra_agent.inventory.settings import InventorySettings
from dra_agent.prepare.setup import SetupDevice
from dra_agent.topology import Topology, scan
from dra_simulate import inject

AUTO = VfioConfig()
DRIVER = "dra-agent.internal"
GPU_IS_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""


class BoundMeanwhile(VfioBindingStore):
    """The bindings of a host on which a claim gets its GPU right after they were read for the first time."""

    def __init__(self, bench: Bench, item: SetupDevice) -> None:
        super().__init__(bench.state)
        self._bench, self._item = bench, item
        self._is_bound = False

    def addresses(self) -> list[str]:
        found = super().addresses()
        if not self._is_bound:
            self._is_bound = True
            self._bench.vfio().set_up("uid-1", [self._item], AUTO, None, a_minute())
        return found


def inventory_of(bench: Bench, topology: Topology, bindings: VfioBindingStore) -> Inventory:
    collector = Collector(bench.host, EVERYTHING, bindings=bindings)
    try:
        return collector.collect(topology)
    finally:
        collector.close()


def test_a_gpu_that_is_bound_to_vfio_during_a_scan_is_not_lost(bench: Bench) -> None:
    item = bench.device(GPU)
    before, topology = bench.inventory(), scan(bench.host)
    seen = inventory_of(bench, topology, BoundMeanwhile(bench, item))
    assert bench.driver(GPU) == "vfio-pci"
    found = seen.device(item.device.name)
    assert found is not None and (found.health, found.issues) == ("healthy", ())
    assert [published(one) for one in seen.devices] == [published(one) for one in before.devices]
    assert [problem for problem in seen.problems if problem.where == item.device.name] == []


def test_a_gpu_that_is_unbound_manually_during_a_scan_is_not_lost(bench: Bench) -> None:
    name, topology = bench.device(GPU).device.name, scan(bench.host)
    bench.kernel.write(f"bus/pci/devices/{GPU}/driver/unbind", GPU)
    found = inventory_of(bench, topology, bench.bindings).device(name)
    assert found is not None and (found.health, found.issues) == ("unmonitored", ())
    assert found.health_reason == "its driver was just taken away"


def test_one_failed_scan_before_a_claim_evicts_no_pod_and_ends_with_the_gpus_return(bench: Bench) -> None:
    now = [1_000_000.0]
    monitor = Monitor(HealthSettings(), DRIVER, clock=lambda: now[0])
    root = bench.folder / "host"

    def taints(after: float) -> list[tuple[str, str]]:
        now[0] += after
        found = monitor.observe(bench.inventory()).device(item.device.name)
        assert found is not None
        return [(taint.key, taint.effect) for taint in found.taints]

    inject.fail(root, "nvmlDeviceGetName", GPU_IS_LOST, GPU, bench.machine)
    judged = monitor.observe(bench.inventory())
    item = next(
        SetupDevice(ClaimDevice("n/gpu", one.name, ("request",)), one)
        for one in judged.devices
        if one.pci_address == GPU
    )
    suspected = [(f"{DRIVER}/gpu-lost", "NoSchedule")]
    assert [(taint.key, taint.effect) for taint in item.device.taints] == suspected
    inject.clear(root)
    outcome = bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    # The GPU cannot be asked now: neither is the one look confirmed by itself, nor is it over.
    assert taints(10) == suspected and not monitor.observation_due()
    assert taints(1000) == suspected
    bench.vfio().tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert taints(1) == []


def unbind(bench: Bench, address: str) -> None:
    bench.kernel.write(f"bus/pci/devices/{address}/driver/unbind", address)


def bind_its_own_driver(bench: Bench, address: str) -> None:
    """What an administrator does with a device that seems to be idle."""
    bench.kernel.write(f"bus/pci/devices/{address}/driver_override", "\n")
    unbind(bench, address)
    bench.kernel.write("bus/pci/drivers_probe", address)


def judged(bench: Bench, monitor: Monitor, name: str) -> tuple[str, list[str], str | None]:
    found = monitor.observe(bench.inventory()).device(name)
    assert found is not None
    return found.health, [taint.key for taint in found.taints], found.health_reason


LOST = [
    (unbind, "no driver has it, and its claim needs vfio-pci"),
    (bind_its_own_driver, "dfl-pci has it, and its claim needs vfio-pci"),
]


@pytest.mark.parametrize(("lose", "reason"), LOST)
def test_a_held_device_that_loses_vfio_pci_is_unhealthy_until_it_has_it_again(
    bench: Bench, lose: Callable[[Bench, str], None], reason: str
) -> None:
    monitor = Monitor(HealthSettings(recovery_seconds=60), DRIVER)
    item, vfio = bench.device(FPGA), bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert judged(bench, monitor, item.device.name) == ("healthy", [], None)
    lose(bench, FPGA)
    health, taints, said = judged(bench, monitor, item.device.name)
    assert (health, taints) == ("unhealthy", [f"{DRIVER}/not-claimable"])
    assert said is not None and reason in said
    vfio.set_up("uid-1", [item], AUTO, outcome.record, a_minute())
    assert judged(bench, monitor, item.device.name) == ("healthy", [], None)


def test_a_virtual_machine_keeps_a_device_with_a_driver_for_its_family(bench: Bench) -> None:
    item = bench.device(FPGA)
    bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    link = bench.host.sysfs / "bus/pci/devices" / FPGA / "driver"
    link.unlink()
    link.symlink_to("../../../../bus/pci/drivers/nvgrace_gpu_vfio_pci")
    found = bench.inventory().device(item.device.name)
    assert found is not None and found.issues == ()


def test_a_device_on_its_way_to_or_from_vfio_pci_is_not_judged(bench: Bench) -> None:
    """At every step of prepare and unprepare, as a scan at that moment sees it."""
    item, seen = bench.device(FPGA), list[tuple[str, str]]()

    class Watched(Points):
        def __call__(self, name: str) -> None:
            super().__call__(name)
            found = bench.inventory().device(item.device.name)
            assert found is not None
            seen.append((name, found.health))

    bench.points = Watched()
    vfio = bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert len(seen) > 10 and [name for name, health in seen if health == "unhealthy"] == []


def test_a_device_is_not_judged_after_a_restart_of_the_host_until_its_claim_is_prepared_again(bench: Bench) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    bind_its_own_driver(bench, FPGA)
    (binding,) = bench.bindings.all().values()
    bench.bindings.write(msgspec.structs.replace(binding, boot_id="11111111-2222-3333-4444-555555555555"))
    found = bench.inventory().device(item.device.name)
    assert found is not None and found.issues == ()
    vfio.set_up("uid-1", [item], AUTO, outcome.record, a_minute())
    unbind(bench, FPGA)
    found = bench.inventory().device(item.device.name)
    assert found is not None and [issue.cause for issue in found.issues] == ["not-claimable"]


def test_an_unreadable_binding_changes_no_other_device(bench: Bench) -> None:
    item, other, vfio = bench.device(FPGA), bench.device(GPU), bench.vfio()
    vfio.set_up("uid-1", [item, other], AUTO, None, a_minute())
    path = bench.bindings.path(FPGA)
    path.unlink()
    path.mkdir()  # the read fails for root as well
    inventory = bench.inventory(InventorySettings())
    found = inventory.device(other.device.name)
    assert found is not None and published(found) == published(other.device)
    assert [problem.where for problem in inventory.problems].count(str(path)) == 1
