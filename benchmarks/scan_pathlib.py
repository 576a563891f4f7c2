"""Reads the same fields with pathlib: scan_pathlib.py every|wanted SYSFS ROUNDS prints one time in ns per line.

`every` reads all fields of all functions, like a simple script. Like dra-agent, `wanted` reads the fields that only
wanted devices have from these devices alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

FILES = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device", "numa_node")
LINKS = ("iommu_group", "driver", "physfn")
WANTED_FILES = (
    "revision",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "../vendor",
    "../max_link_speed",
    "../max_link_width",
    "sriov_totalvfs",
    "sriov_numvfs",
)
WANTED_FOLDERS = ("net", "infiniband", "infiniband_verbs", "drm", "accel", "uio")
WANTED_CLASSES = ("0x02", "0x03", "0x0108", "0x12")


def scan(sysfs: Path, every: bool) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for entry in (sysfs / "bus/pci/devices").iterdir():
        device = entry.resolve()
        facts: dict[str, object] = {"parents": device.parts}
        for name in FILES:
            facts[name] = (device / name).read_text().strip()
        for name in LINKS:
            link = device / name
            if link.is_symlink():
                facts[name] = link.readlink().name
        if every or str(facts["class"]).startswith(WANTED_CLASSES):
            for name in WANTED_FILES:
                if (device / name).exists():
                    facts[name] = (device / name).read_text().strip()
            for name in WANTED_FOLDERS:
                if (device / name).is_dir():
                    facts[name] = [inner.name for inner in (device / name).iterdir()]
        found[entry.name] = facts
    return found


for _ in range(int(sys.argv[3])):
    start = time.perf_counter_ns()
    functions = len(scan(Path(sys.argv[2]), sys.argv[1] == "every"))
    print(time.perf_counter_ns() - start, functions)
