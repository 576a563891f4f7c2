"""MIG instances that are created and destroyed during a collection, at each of its calls of NVML."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.nvidia.mig_ownership import OwnedInstance, note_path, read_note
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, NvmlError, acquire
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import scan
from dra_simulate import build_machine, inject
from eventually import DEADLINE_S
from inventory.pair import ADDRESS, NAME, ONE_G, PAIR, TWO_G, destroy, handle, make

RULES = (PartitionRule('device.attributes["dra-agent.internal"].vendor == "nvidia"', "mig"),)
Change = Callable[[], object]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return dataclasses.replace(build_machine(PAIR, tmp_path / "host"), state=tmp_path / "state")


@pytest.fixture
def library(host: Host) -> Iterator[NvmlClient]:
    made = acquire(host.nvml_library, DEADLINE_S)
    made.start()
    made.call("nvmlDeviceSetMigMode", handle(made), 1, about=ADDRESS)
    yield made
    made.close()


@pytest.fixture
def collectors(host: Host) -> Iterator[Callable[..., Collector]]:
    opened: list[Collector] = []

    def open_(*rules: PartitionRule) -> Collector:
        opened.append(Collector(host, InventorySettings(nvml_timeout=DEADLINE_S, partition=rules)))
        return opened[-1]

    yield open_
    for collector in opened:
        collector.close()


class Moments:
    """Calls of NVML about the GPU, counted; at the chosen one something happens first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._at: int | None = None
        self._happens: Change | None = None
        call = NvmlClient.call

        def counted(nvml: NvmlClient, name: str, *arguments: Any, about: str = "", **more: Any) -> Any:
            happens = self._happens
            if about == ADDRESS and happens is not None:
                self.names.append(name)
                if len(self.names) - 1 == self._at:
                    self._happens = None
                    happens()
            return call(nvml, name, *arguments, about=about or "the library", **more)

        monkeypatch.setattr(NvmlClient, "call", counted)

    def during(self, scan_host: Callable[[], Inventory], at: int, happens: Change) -> Inventory:
        """Let it happen just before the call of that number, or after the collection where it makes fewer."""
        self.names.clear()
        self._at, self._happens = at, happens
        found = scan_host()
        if self._happens is not None:
            self._happens = None
            happens()
        return found

    def count(self, scan_host: Callable[[], Inventory]) -> int:
        """Count the calls of a collection without changes."""
        self.during(scan_host, -1, lambda: None)
        return len(self.names)

    @property
    def last(self) -> str:
        """Return the call at which the change happened."""
        return f"{len(self.names)} calls, {self.names[-1]}"


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Moments:
    return Moments(monkeypatch)


def own(host: Host, *instances: OwnedInstance) -> None:
    assert host.state is not None
    path = note_path(host.state, ADDRESS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(read_note(host, ADDRESS), instances=instances)))


def published(inventory: Inventory) -> list[Any]:
    return [(device.health, device.health_reason, device.to_api()) for device in inventory.family("gpu")]


def test_claims_during_a_scan_do_not_change_the_published_devices(
    host: Host, library: NvmlClient, collectors: Callable[..., Collector], moments: Moments
) -> None:
    """Every partition is present and monitored each time a claim's instance is created or destroyed."""
    own(host, OwnedInstance(f"{NAME}-mig-2g-20gb-0", TWO_G, 0, 2, ("uid/a",)), noted(5), noted(6))
    make(library, TWO_G, 0, 2)
    kept = [make(library, ONE_G, 6, 1)]
    collector, topology = collectors(*RULES), scan(host)
    before = collector.collect(topology)
    assert {device.health for device in before.family("gpu")} == {"healthy"}
    expected = published(before), before.problems, before.excluded, before.counter_sets

    def scan_host() -> Inventory:
        return collector.collect(topology)

    def unprepare() -> None:
        destroy(library, kept.pop())

    def prepare() -> None:
        kept.append(make(library, ONE_G, 6, 1))

    steps = moments.count(scan_host)
    assert steps > 20
    for at in range(steps):
        for happens in (unprepare, prepare):
            found = moments.during(scan_host, at, happens)
            where = f"{happens.__name__} before the last of {moments.last}"
            assert (published(found), found.problems, found.excluded, found.counter_sets) == expected, where


def noted(start: int) -> OwnedInstance:
    return OwnedInstance(f"{NAME}-mig-1g-10gb-{start}", ONE_G, start, 1, ("uid/b",))


def test_a_mig_mode_change_during_a_scan_does_not_change_the_published_devices(
    host: Host, library: NvmlClient, collectors: Callable[..., Collector], moments: Moments
) -> None:
    collector, topology = collectors(*RULES), scan(host)
    expected = published(collector.collect(topology))

    def scan_host() -> Inventory:
        return collector.collect(topology)

    def switch(mode: int) -> Change:
        return lambda: library.call("nvmlDeviceSetMigMode", handle(library), mode, about=ADDRESS)

    for at in range(moments.count(scan_host)):
        for mode in (0, 1):
            found = moments.during(scan_host, at, switch(mode))
            assert published(found) == expected, f"mode {mode} before the last of {moments.last}"


def test_instances_of_an_administrator_are_reported_as_before_or_after(
    host: Host, library: NvmlClient, collectors: Callable[..., Collector], moments: Moments
) -> None:
    """Those behind the one that is destroyed get another index, and none of them is missed for it."""
    first, _, _ = make(library, ONE_G, 4, 1), make(library, ONE_G, 5, 1), make(library, TWO_G, 0, 2)
    kept = [first]
    collector, topology = collectors(), scan(host)

    def scan_host() -> Inventory:
        return collector.collect(topology)

    def go() -> None:
        destroy(library, kept.pop())

    def come() -> None:
        kept.append(make(library, ONE_G, 4, 1))

    def devices(inventory: Inventory) -> dict[str, Any]:
        # An instance that is created again differs only in its UUID.
        return {
            device.name: (device.health, device.capacity, device.nodes, device.identity.get("memory"))
            for device in inventory.family("gpu")
        }

    three, steps = scan_host(), moments.count(scan_host)
    go()
    two = scan_host()
    come()
    assert len(devices(three)) == len(devices(two)) + 1
    for at in range(steps):
        for happens in (go, come):
            found = moments.during(scan_host, at, happens)
            where = f"{happens.__name__} before the last of {moments.last}"
            assert devices(found) in (devices(three), devices(two)), where
            assert found.problems == (), where


def test_a_permanent_error_is_not_a_removed_instance(
    host: Host, library: NvmlClient, collectors: Callable[..., Collector]
) -> None:
    make(library, ONE_G, 6, 1)
    own(host, noted(6))
    collector = collectors(*RULES)
    before = collector.collect(scan(host))
    root = host.sysfs.parent
    inject.fail(root, "nvmlGpuInstanceGetInfo", library.module.NVML_ERROR_INVALID_ARGUMENT, ADDRESS, PAIR)
    with pytest.raises(NvmlError):
        make(library, ONE_G, 4, 1)
    found = collector.collect(scan(host))
    ailing = [device for device in found.family("gpu") if device.pci_address == ADDRESS]
    assert {device.health for device in ailing} == {"unmonitored"}
    assert any("Invalid Argument" in problem.message for problem in found.problems)
    assert [device.name for device in found.family("gpu")] == [device.name for device in before.family("gpu")]
    inject.clear(root)
    assert {device.health for device in collector.collect(scan(host)).family("gpu")} == {"healthy"}
