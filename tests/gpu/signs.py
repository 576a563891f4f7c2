"""Signs that a machine has an NVIDIA GPU: where there is one, a missing part of the driver is not a reason to skip."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.record.tools import find_tool
from dra_agent.host import Host

_VENDOR, _DISPLAY = "0x10de", "0x03"
_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib/wsl/lib")


def find_signs(host: Host, libraries: tuple[Path, ...] | None = None) -> list[str]:
    """Return what shows that a GPU is, or was, here; `libraries` are those of the host, None for this machine's."""
    return [
        *([str(host.proc / "driver/nvidia")] if (host.proc / "driver/nvidia").is_dir() else []),
        *(f"PCI function {address}" for address in _functions(host.sysfs)),
        *sorted(str(path) for path in host.dev.glob("nvidia*")),
        *map(str, _libraries() if libraries is None else libraries),
    ]


def missing(host: Host, signs: list[str], smi: Path | None) -> str:
    """Return what has to be done before the tests can run; "" where nothing is missing, or there is no sign."""
    if not signs:
        return ""
    shown = ", ".join(signs[:4])
    if not (host.proc / "driver/nvidia/version").exists():
        return f"there are signs of an NVIDIA GPU ({shown}), but its driver is not loaded: run `modprobe nvidia`"
    if smi is None:
        return (
            f"there are signs of an NVIDIA GPU ({shown}), but nvidia-smi is not found: install it with the driver,"
            " or name its directory in PATH"
        )
    return ""


def smi_of(host: Host) -> Path | None:
    """Find nvidia-smi, also outside of the caller's PATH."""
    return find_tool(host, "nvidia-smi")


def _functions(sysfs: Path) -> Iterator[str]:
    for folder in sorted((sysfs / "bus/pci/devices").glob("*")):
        try:
            vendor, kind = (folder / "vendor").read_text().strip(), (folder / "class").read_text()
        except OSError:
            continue
        if vendor == _VENDOR and kind.startswith(_DISPLAY):
            yield folder.name


def _libraries() -> tuple[Path, ...]:
    found = tuple(path for folder in _FOLDERS if (path := Path(folder) / _LIBRARY).exists())
    if found:
        return found
    try:
        cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ()
    return tuple(Path(line.partition("=> ")[2].strip()) for line in cache.splitlines() if _LIBRARY in line)
