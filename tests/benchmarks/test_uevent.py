"""The work of one uevent depends on the devices that can be claimed, not on the size of the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import uevent
from scan_tree import build

from dra_agent.host import Host
from dra_agent.inventory.backend import backend_of
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import LiveTopology, PciFunction, Uevent

CLAIMABLE = 2
"""A GPU and a NIC; the third wanted device is an NVMe drive."""


def test_functions_that_are_never_claimed_add_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (work(tmp_path / str(functions), functions, monkeypatch) for functions in (20, 200))
    assert small == large
    assert small["functions considered"] == CLAIMABLE


def work(folder: Path, functions: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count what the inventory after one event does."""
    tree = build(folder, functions=functions, wanted=3)
    (folder / "net").mkdir()
    (folder / "net/route").write_text("Iface\n")
    host = Host(sysfs=folder / "sys", dev=folder / "dev", net=folder / "net", proc=folder / "proc")
    topology, collector = LiveTopology(host), Collector(host, InventorySettings())
    assert len(collector.collect(topology.snapshot()).devices) == CLAIMABLE
    place = tree.wanted[1]
    (host.sysfs / "devices" / place / "numa_node").write_text("1\n")
    assert topology.apply(Uevent("change", f"/devices/{place}", "pci"))
    counts = {"files opened": 0, "functions considered": 0}
    open_file = os.open

    def counting_open(*arguments: Any, **options: Any) -> int:
        counts["files opened"] += 1
        return open_file(*arguments, **options)

    def counting_backend_of(function: PciFunction) -> str | None:
        counts["functions considered"] += 1
        return backend_of(function)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", counting_open)
        patch.setattr("dra_agent.inventory.collector.backend_of", counting_backend_of)
        collector.collect(topology.snapshot())
    collector.close()
    assert counts["files opened"] > 0
    return counts


def test_the_benchmark_measures_every_phase(tmp_path: Path) -> None:
    measures = uevent.one_host(tmp_path, 20, 3, 2, None)
    assert [one.name.removeprefix("20 functions, 2 devices: ") for one in measures] == [
        "apply, CPU",
        "snapshot, CPU",
        "touched, CPU",
        "inventory, CPU",
        "health, CPU",
        "diff, CPU",
        "slices, CPU",
        "message to slices, CPU",
        "message to slices, wall",
    ]
    assert all(len(one.samples) == 2 for one in measures)
