"""QEMU: the installed one, or the package of this host's Debian, unpacked in target/vm."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vm.machine.apt import Apt, unpack
from vm.machine.kernels import KEPT

PROGRAM = "qemu-system-x86_64"
PACKAGE = "qemu-system-x86"


@dataclass(frozen=True)
class Emulator:
    """How QEMU is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def emulator() -> Emulator:
    """Return QEMU; its first use downloads it if it is not installed."""
    if installed := shutil.which(PROGRAM):
        return Emulator((installed,))
    root = KEPT / "qemu"
    if not root.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="qemu-", dir=KEPT) as scratch:
            suite = _codename()
            apt = Apt(Path(scratch) / "apt", (suite, f"{suite}-updates", f"{suite}-security"))
            for package in apt.with_dependencies(PACKAGE):
                unpack(package, Path(scratch) / "root")
            (Path(scratch) / "root").rename(root)
    libraries = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    data = [root / "usr/share/qemu", root / "usr/share/seabios", root / "usr/lib/ipxe/qemu"]
    return Emulator(
        (str(root / "usr/bin" / PROGRAM), *(word for folder in data for word in ("-L", str(folder)))),
        {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "QEMU_MODULE_DIR": str(libraries[0] / "qemu")},
    )


def _codename() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields.get("VERSION_CODENAME", "").strip('"')
