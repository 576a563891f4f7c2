"""Kernels of Debian packages, kept in target/vm with the modules that the guest loads."""

from __future__ import annotations

import re
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vm.machine import modules
from vm.machine.apt import Apt, unpack

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "target/vm"
META_PACKAGE = "linux-image-amd64"
"""Depends on the newest kernel of its suite."""
_PARTS = re.compile(r"linux-(image|binary|modules|base)-\d.*-amd64$")


@dataclass(frozen=True)
class Kernel:
    """A kernel and its modules in the order in which the guest loads them."""

    image: Path
    modules: tuple[Path, ...]


SUITES: dict[str, Sequence[str]] = {
    "oldest": ("bookworm", "bookworm-security"),
    "newest": ("trixie", "trixie-backports"),
}
"""By name of the kernel, as DRA_AGENT_TEST_VM_KERNEL selects it: the suites whose newest kernel it is."""


def kernel(name: str) -> Kernel:
    """Return a kernel; its first use downloads it, with about 100 MB. Other modules are another kernel."""
    wanted = ",".join((*modules.FIRST_IF_THERE, *modules.REQUIRED))
    folder = KEPT / "kernels" / f"{name}-{zlib.crc32(wanted.encode()):08x}"
    if not folder.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=KEPT) as scratch:
            _fetch(Apt(Path(scratch) / "apt", SUITES[name]), Path(scratch) / "tree", Path(scratch) / "kept")
            folder.parent.mkdir(exist_ok=True)
            (Path(scratch) / "kept").rename(folder)
    return Kernel(folder / "vmlinuz", tuple(sorted((folder / "modules").iterdir())))


def _fetch(apt: Apt, tree: Path, kept: Path) -> None:
    _, depends = apt.newest(META_PACKAGE)
    (image,) = [name for name in depends if name.startswith("linux-image-")]
    version, parts = apt.newest(image)
    # Newer packages divide a kernel into several ones, all of the same version.
    for package in [image, *filter(_PARTS.match, parts)]:
        unpack(apt.download(package, version), tree)
    (folder,) = [path.parent for path in tree.rglob("modules.builtin")]
    images = [*tree.glob("boot/vmlinuz-*"), *folder.glob("vmlinuz")]
    (kept / "modules").mkdir(parents=True)
    shutil.copy(images[0], kept / "vmlinuz")
    for number, (name, content) in enumerate(modules.select(folder)):
        (kept / "modules" / f"{number:03}-{name}.ko").write_bytes(content)
