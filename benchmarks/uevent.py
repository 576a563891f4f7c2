"""Measures one uevent from the kernel's message to the new slice object, by phase, on generated hosts.

The messages are real: a `change` that is written to the uevent file of a PCI function of this machine, and a pair of
virtual interfaces that is added and removed. The host that they change is a generated tree, because no machine has a
thousand functions: after the message arrives, the event of a NIC of that tree takes its place. Phases are CPU time of
the process, which other load does not extend; "wall" is the elapsed time of all phases.

Requires root for the messages, and iproute2 for the interfaces; without them, that part is skipped.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from results import Measure, Target, measure, this_machine
from results_table import publish
from scan_tree import build

from dra_agent.errors import AgentError
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.tracker import diff
from dra_agent.slices import CurrentSlices
from dra_agent.topology import LiveTopology, Uevent, UeventSocket

DRIVER = "dra-agent.internal"
HOSTS = ((1000, 24), (1000, 360), (4096, 24))
"""PCI functions, and how many of them are GPUs, NICs and NVMe drives, a third each."""
TARGET = Target("value", "at most", 5.0)
KERNEL_TIMEOUT_S = 5.0

Result = TypeVar("Result")


class Clock:
    """CPU time of the process by phase, in ms, and the wall time of all phases of a round."""

    def __init__(self) -> None:
        self.phases: dict[str, list[float]] = {}
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self._round_cpu = self._round_wall = 0.0

    def time(self, phase: str, call: Callable[[], Result]) -> Result:
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        result = call()
        spent = (time.process_time_ns() - cpu) / 1e6
        self.phases.setdefault(phase, []).append(spent)
        self._round_cpu += spent
        self._round_wall += (time.perf_counter_ns() - wall) / 1e6
        return result

    def end_round(self) -> None:
        self.cpu.append(self._round_cpu)
        self.wall.append(self._round_wall)
        self._round_cpu = self._round_wall = 0.0

    def measures(self, host: str) -> list[Measure]:
        return [
            *(measure(f"{host}: {phase}, CPU", "ms", times) for phase, times in self.phases.items()),
            measure(f"{host}: message to slices, CPU", "ms", self.cpu, target=TARGET),
            measure(f"{host}: message to slices, wall", "ms", self.wall, target=TARGET),
        ]


class Kernel:
    """Causes real uevents, and receives them."""

    def __init__(self) -> None:
        files = sorted(Path("/sys/bus/pci/devices").glob("*/uevent"))
        if os.geteuid() != 0 or not files:
            raise LookupError("needs root and a PCI function")
        try:
            self._socket = UeventSocket()
        except AgentError as error:
            raise LookupError(str(error)) from error
        self._file = files[0]

    def change(self) -> None:
        """Cause one event; it is in the socket when this returns."""
        self.drain()
        self._file.write_text("change")
        if not select.select([self._socket.fileno()], [], [], KERNEL_TIMEOUT_S)[0]:
            raise LookupError("the kernel sent no event: another network namespace")

    def receive(self) -> tuple[Uevent, ...]:
        """Return the waiting events."""
        return self._socket.receive().events

    def drain(self) -> None:
        """Drop the events of others."""
        while self.receive():
            pass

    def virtual_pair(self) -> tuple[Uevent, ...]:
        """Add and remove a pair of virtual interfaces, as for a pod, and return the events."""
        self.drain()
        for command in ("add drabench0 type veth peer name drabench1", "del drabench0"):
            try:
                subprocess.run(["ip", "link", *command.split()], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise LookupError(f"no virtual interfaces: {error}") from error
        events = self.receive()
        return tuple(event for event in events if "/drabench" in event.devpath)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    logging.disable()  # a generated host has no vendor library, which is logged for each device
    machine, measures = this_machine(), list[Measure]()
    kernel: Kernel | None = None
    try:
        kernel = Kernel()
        kernel.change()
    except LookupError as error:
        print(f"uevents of the kernel: skipped: {error}")
        kernel = None
    for functions, wanted in HOSTS:
        with tempfile.TemporaryDirectory(prefix="dra-bench-") as folder:
            measures += one_host(Path(folder), functions, wanted, args.rounds, kernel)
    if kernel is not None:
        try:
            measures.append(measure("events of a virtual pair", "count", [len(kernel.virtual_pair())]))
        except LookupError as error:
            print(f"virtual interfaces: skipped: {error}")
    publish("uevent", measures, machine)


def one_host(folder: Path, functions: int, wanted: int, rounds: int, kernel: Kernel | None) -> list[Measure]:
    """Measure the phases of `DeviceState.refresh`; each event moves a NIC to the other NUMA node."""
    tree = build(folder, functions=functions, wanted=wanted)
    (folder / "net").mkdir()
    (folder / "net/route").write_text("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n")
    host = Host(sysfs=folder / "sys", dev=folder / "dev", net=folder / "net")
    topology, collector = LiveTopology(host), Collector(host, InventorySettings())
    monitor = Monitor(HealthSettings(), DRIVER)
    current = CurrentSlices(node="node", driver=DRIVER)
    inventory = monitor.observe(collector.collect(topology.snapshot()))
    current.update(inventory)
    nic = f"/devices/{next(place for place in tree.wanted if '01.0' in place[-4:])}"
    event = Uevent("change", nic, "pci")
    clock = Clock()
    for number in range(rounds):
        (host.sysfs / nic.lstrip("/") / "numa_node").write_text(f"{number % 2}\n")
        if kernel is not None:
            kernel.change()
            clock.time("receive", kernel.receive)
        clock.time("apply", lambda: topology.apply(event))
        found = clock.time("snapshot", topology.snapshot)
        touched = clock.time("touched", lambda: found.touched_by([event]))  # noqa: B023 - called at once
        collected = clock.time("inventory", lambda: collector.collect(found, touched))  # noqa: B023
        after = clock.time("health", lambda: monitor.observe(collected, collector.kept))  # noqa: B023
        changed = clock.time("diff", lambda: diff(inventory, after))  # noqa: B023
        assert len(changed.changed) <= 1, changed
        clock.time("slices", lambda: current.update(after))  # noqa: B023
        inventory = after
        clock.end_round()
    collector.close()
    return clock.measures(f"{functions} functions, {len(inventory.devices)} devices")


if __name__ == "__main__":
    main()
