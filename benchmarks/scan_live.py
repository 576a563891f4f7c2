"""Measures one uevent and the next snapshot in Python: `scan_live.py SYSFS DEVPATH ROUNDS` prints "ns devices"."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dra_agent.host import Host
from dra_agent.topology import LiveTopology, Uevent


def main(sysfs: Path, devpath: str, rounds: int) -> None:
    live = LiveTopology(Host(sysfs=sysfs))
    live.snapshot()
    folder = sysfs / devpath.removeprefix("/")
    for turn in range(rounds):
        (folder / "numa_node").write_text(f"{turn % 2}\n")
        began = time.perf_counter_ns()
        live.apply(Uevent("change", devpath, "pci"))
        snapshot = live.snapshot()
        print(time.perf_counter_ns() - began, len(snapshot.devices))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
