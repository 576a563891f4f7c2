"""What lspci reports of a PCI function: link, IOMMU group, driver and the bridges above it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dra_agent.host import Host

_SPEEDS = {"2.5GT/s": 1, "5GT/s": 2, "8GT/s": 3, "16GT/s": 4, "32GT/s": 5, "64GT/s": 6, "128GT/s": 7}
_LINK = r"{}:\s.*?Speed ([0-9.]+GT/s).*?Width x(\d+)"


@dataclass(frozen=True, slots=True)
class ReportedFunction:
    """One function; None is what lspci does not report, because it lacks permission."""

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None
    iommu_group: int | None
    numa_node: int | None
    driver: str | None
    bridges: tuple[str, ...]
    """Bus, device and function of the bridges, from the root port to the last."""


def find_lspci() -> Path | None:
    """Return its path."""
    found = shutil.which("lspci") or shutil.which("lspci", path="/usr/sbin:/usr/bin:/sbin:/bin")
    return Path(found) if found else None


def ask(tool: Path, host: Host, address: str) -> ReportedFunction:
    """Ask it; on a simulated host about the files of that host."""
    details = _run(tool, *_access(host), "-D", "-vvv", "-s", address)
    path = _run(tool, *_access(host), "-D", "-n", "-PP", "-s", address).partition(" ")[0]
    return read(details, path)


def listing(tool: Path, host: Host) -> str:
    """List every function with its class: "0000:1a:00.0 0302: 10de:20b5 (rev a1)"."""
    return _run(tool, *_access(host), "-D", "-n")


def _access(host: Host) -> tuple[str, ...]:
    own = host.sysfs == Path("/sys")
    return () if own else ("-A", "linux-sysfs", "-O", f"sysfs.path={host.sysfs}/bus/pci")


def read(details: str, path: str) -> ReportedFunction:
    """Read `lspci -D -vvv`, and the path that `-PP` prints: "0000:17:01.0/18:00.0/1a:00.0"."""
    now, most = (re.search(_LINK.format(name), details) for name in ("LnkSta", "LnkCap"))
    return ReportedFunction(
        generation=_SPEEDS.get(now[1]) if now else None,
        width=int(now[2]) if now else None,
        max_generation=_SPEEDS.get(most[1]) if most else None,
        max_width=int(most[2]) if most else None,
        iommu_group=_number(details, r"IOMMU group: (\d+)"),
        numa_node=_number(details, r"NUMA node: (\d+)"),
        driver=found[1] if (found := re.search(r"Kernel driver in use: (\S+)", details)) else None,
        bridges=tuple(part[-7:] for part in path.split("/")[:-1]),
    )


def _number(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def _run(tool: Path, *arguments: str) -> str:
    done = subprocess.run(
        [tool, *arguments], capture_output=True, text=True, timeout=60, check=False, env={"LC_ALL": "C", "PATH": "/bin"}
    )
    assert done.returncode == 0, f"lspci {' '.join(arguments)}: {done.stderr}"
    return done.stdout
