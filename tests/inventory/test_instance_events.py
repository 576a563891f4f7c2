"""From NVML's events to devices, on simulated GPUs that are divided through NVML itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import DeviceEvent
from dra_agent.inventory.nvidia import partitionable
from dra_agent.inventory.nvidia.events import NO_INSTANCE
from dra_agent.inventory.nvidia.mig_ownership import OwnedInstance, note_path, read_note
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import scan
from dra_simulate import build_machine, inject, nvml
from eventually import DEADLINE_S
from inventory.pair import ADDRESS, NAME, ONE_G, PAIR, TWO_G, destroy, handle, make


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build_machine(PAIR, tmp_path / "host")


@pytest.fixture
def library(host: Host) -> Iterator[NvmlClient]:
    made = acquire(host.nvml_library, DEADLINE_S)
    made.start()
    yield made
    made.close()


@pytest.fixture
def collector(host: Host, library: NvmlClient) -> Iterator[Collector]:
    made = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))
    yield made
    made.close()


def xid(host: Host, number: int, instance: int = NO_INSTANCE, compute: int = NO_INSTANCE) -> None:
    """Raise it as `change.xid` does, on an instance."""
    root = host.sysfs.parent
    inject.xid(root, ADDRESS, number, PAIR)
    with nvml.locked(root / "lib"):
        state = nvml.read(root / "lib")
        last = msgspec.structs.replace(state.events[-1], gpu_instance=instance, compute_instance=compute)
        nvml.write(root / "lib", msgspec.structs.replace(state, events=(*state.events[:-1], last)))


def events_of(collector: Collector) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(fault.pci_address, fault.cause, fault.devices) for fault in collector.faults()]


def test_an_event_of_an_instance_names_its_device(host: Host, library: NvmlClient, collector: Collector) -> None:
    library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
    first, second = make(library, ONE_G, 4, 1), make(library, TWO_G, 0, 2)
    inventory = collector.collect(scan(host))
    names = [device.name for device in inventory.family("gpu")]
    one, two = f"{NAME}-mig-1g-10gb-4", f"{NAME}-mig-2g-20gb-0"
    assert set(names) == {one, two, "gpu-0000-02-00-0"}
    # Both lines are of one moment, as a kernel's log has them: neither is lost, and they come in order.
    for instance, compute in ((first, 0), (second, NO_INSTANCE), (NO_INSTANCE, NO_INSTANCE)):
        xid(host, 94, instance, compute)
    expected: list[tuple[str, ...]] = [(one,), (two,), ()]
    assert events_of(collector) == [(ADDRESS, "xid-94", devices) for devices in expected]


def test_an_event_is_one_taint_or_one_for_each_instance(host: Host, library: NvmlClient, collector: Collector) -> None:
    library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
    first, second = make(library, ONE_G, 4, 1), make(library, ONE_G, 5, 1)
    assert first != second
    inventory = collector.collect(scan(host))
    monitor = Monitor(HealthSettings(), "d")

    def tainted(faults: list[DeviceEvent]) -> dict[str, list[str]]:
        found = monitor.record_events(faults, inventory)
        return {device.name: [taint.key for taint in device.taints] for device in found.devices if device.taints}

    xid(host, 94, second, 0)
    one = {f"{NAME}-mig-1g-10gb-5": ["d/xid-94"]}
    assert tainted(collector.faults()) == one
    xid(host, 31, first, 0)
    assert tainted(collector.faults()) == one, "a program's own fault"
    xid(host, 79, first, 0)
    assert tainted(collector.faults()) == {
        f"{NAME}-mig-1g-10gb-4": ["d/xid-79"],
        f"{NAME}-mig-1g-10gb-5": ["d/xid-79", "d/xid-94"],
    }


def test_a_lost_gpu_takes_every_instance_along(host: Host, library: NvmlClient, collector: Collector) -> None:
    library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
    make(library, ONE_G, 4, 1), make(library, ONE_G, 5, 1)
    collector.collect(scan(host))
    root = host.sysfs.parent
    inject.fail(root, None, 15, ADDRESS, PAIR)
    lost = collector.collect(scan(host)).family("gpu")
    assert [(device.health, [one.cause for one in device.issues]) for device in lost] == [
        ("unhealthy", ["gpu-lost"]),
        ("unhealthy", ["gpu-lost"]),
        ("healthy", []),
    ]
    inject.clear(root)
    assert {device.health for device in collector.collect(scan(host)).family("gpu")} == {"healthy"}


RULES = (PartitionRule('device.attributes["dra-agent.internal"].vendor == "nvidia"', "mig"),)


def test_an_instance_that_was_made_for_a_claim_is_its_partition(host: Host, library: NvmlClient) -> None:
    collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S, partition=RULES))
    names = {device.name for device in collector.collect(scan(host)).family("gpu")}
    one, two = f"{NAME}-mig-1g-10gb-4", f"{NAME}-mig-2g-20gb-0"
    assert {NAME, one, two} <= names
    # Made after the look, as prepare does; the partitions were there all the time.
    library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
    first, second = make(library, ONE_G, 4, 1), make(library, TWO_G, 0, 2)
    xid(host, 94, first, 0)
    xid(host, 94, second, 0)
    assert events_of(collector) == [(ADDRESS, "xid-94", (one,)), (ADDRESS, "xid-94", (two,))]
    # The failed instance is destroyed before the events are read.
    xid(host, 94, first, 0)
    destroy(library, first)
    assert events_of(collector) == [(ADDRESS, "xid-94", (one,))]
    # A lost GPU is lost with everything that it could be divided into.
    root = host.sysfs.parent
    inject.fail(root, None, 15, ADDRESS, PAIR)
    lost = [device for device in collector.collect(scan(host)).family("gpu") if device.pci_address == ADDRESS]
    assert {device.name for device in lost} == {name for name in names if name.startswith(NAME)}
    assert {tuple(one.cause for one in device.issues) for device in lost} == {("gpu-lost",)}
    inject.clear(root)
    collector.close()


def own(host: Host, *instances: OwnedInstance) -> None:
    """Note instances as the set-up does; none: that there are none."""
    assert host.state is not None
    path = note_path(host.state, ADDRESS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_note(host, ADDRESS), instances=instances)))


def test_an_instance_of_a_lost_gpu_stays_owned(host: Host, library: NvmlClient, tmp_path: Path) -> None:
    host = dataclasses.replace(host, state=tmp_path / "state")
    collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S, partition=RULES))
    library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
    make(library, ONE_G, 4, 1)
    own(host, OwnedInstance(f"{NAME}-mig-1g-10gb-4", ONE_G, 4, 1, ("uid/key",)))
    before = [device.to_api() for device in collector.collect(scan(host)).devices]
    assert NAME in [device["name"] for device in before]
    root = host.sysfs.parent
    inject.fail(root, None, 15, ADDRESS, PAIR)
    own(host)
    assert [device.to_api() for device in collector.collect(scan(host)).devices] == before
    inject.clear(root)
    inject.reset(root, ADDRESS, PAIR)  # which a lost GPU needs, and which no instance survives
    assert [device.to_api() for device in collector.collect(scan(host)).devices] == before
    collector.close()


def test_an_instance_that_is_removed_during_a_scan_stays_owned(
    host: Host, library: NvmlClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = dataclasses.replace(host, state=tmp_path / "state")
    collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S, partition=RULES))
    library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
    number = make(library, ONE_G, 4, 1)
    own(host, OwnedInstance(f"{NAME}-mig-1g-10gb-4", ONE_G, 4, 1, ("uid/key",)))
    before = [device.name for device in collector.collect(scan(host)).devices]
    ask = partitionable.list_instances

    def then_unprepare(*arguments: Any) -> Any:
        found = ask(*arguments)
        if arguments[2] == ADDRESS:
            destroy(library, number)
            own(host)
        return found

    monkeypatch.setattr(partitionable, "list_instances", then_unprepare)
    assert [device.name for device in collector.collect(scan(host)).devices] == before
    collector.close()
