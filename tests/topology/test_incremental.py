"""A snapshot after events equals a new scan, and only changed devices are read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_agent.topology import LiveTopology, Uevent, scan

STEPS = 60


class Machine:
    """A simulated host whose PCI functions are added, removed and changed."""

    def __init__(self, host: Host, parked: Path) -> None:
        self.host = host
        self._parked = parked
        self._bus = host.sysfs / "bus/pci/devices"
        self._links: dict[str, Path] = {}

    def present(self) -> list[str]:
        """The addresses of functions without functions below them, which can be unplugged alone."""
        folders = {link.name: link.resolve() for link in self._bus.iterdir()}
        above = {parent for folder in folders.values() for parent in folder.parents}
        return sorted(address for address, folder in folders.items() if folder not in above)

    def absent(self) -> list[str]:
        return sorted(self._links)

    def unplug(self, address: str) -> Uevent:
        link = self._bus / address
        folder = link.resolve()
        self._links[address] = folder
        shutil.move(folder, self._parked / address)
        link.unlink()
        return self._event("remove", folder)

    def plug(self, address: str) -> Uevent:
        folder = self._links.pop(address)
        shutil.move(self._parked / address, folder)
        (self._bus / address).symlink_to(folder)
        return self._event("add", folder)

    def change(self, address: str, numa_node: int) -> Uevent:
        folder = (self._bus / address).resolve()
        (folder / "numa_node").write_text(f"{numa_node}\n")
        return self._event("change", folder)

    def damage(self, address: str) -> Uevent:
        """Make the identity of the function unreadable."""
        folder = (self._bus / address).resolve()
        for name in ("class", "uevent"):
            (folder / name).rename(self._parked / name)
            (folder / name).write_text("garbage\n")
        return self._event("change", folder)

    def repair(self, address: str) -> Uevent:
        folder = (self._bus / address).resolve()
        for name in ("class", "uevent"):
            (self._parked / name).rename(folder / name)
        return self._event("change", folder)

    def _event(self, action: str, folder: Path) -> Uevent:
        return Uevent(action, f"/{folder.relative_to(self.host.sysfs)}", "pci")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "parked").mkdir()
    yield Machine(dra_simulate.build("mixed", tmp_path / "host"), tmp_path / "parked")


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_after_events_equals_a_scan(machine: Machine, seed: int) -> None:
    rng = random.Random(seed)
    live = LiveTopology(machine.host)
    for _ in range(STEPS):
        step = rng.random()
        if step < 0.35:
            event = machine.unplug(rng.choice(machine.present()))
        elif step < 0.7 and machine.absent():
            event = machine.plug(rng.choice(machine.absent()))
        else:
            event = machine.change(rng.choice(machine.present()), rng.choice([-1, 0, 1]))
        live.apply(event)
        if rng.random() < 0.1:
            live.rescan()
        if rng.random() < 0.5:  # Otherwise there are several events between two snapshots.
            assert live.snapshot() == scan(machine.host)
    assert live.snapshot() == scan(machine.host)
    assert live.snapshot().devices, "no device is left to compare"


def test_unaffected_devices_are_not_read_again(machine: Machine) -> None:
    live = LiveTopology(machine.host)
    before = live.snapshot()
    changed = machine.present()[0]
    live.apply(machine.change(changed, 1 if before.by_address[changed].numa_node != 1 else 0))
    after = live.snapshot()
    assert after == scan(machine.host) and after != before
    for address, device in after.by_address.items():
        assert (device is before.by_address[address]) == (address != changed)


def test_an_unchanged_host_has_the_same_snapshot(machine: Machine) -> None:
    live = LiveTopology(machine.host)
    before = live.snapshot()
    live.apply(Uevent("change", f"/devices/pci0000:00/{machine.present()[0]}", "usb"))
    assert live.snapshot() is before


def test_a_temporary_problem_is_in_the_snapshot(machine: Machine) -> None:
    live = LiveTopology(machine.host)
    before = live.snapshot()
    address = machine.present()[0]
    live.apply(machine.damage(address))
    damaged = live.snapshot()
    assert damaged == scan(machine.host)
    assert address not in damaged.by_address and any(address in problem.where for problem in damaged.problems)
    live.apply(machine.repair(address))
    assert live.snapshot() == before
