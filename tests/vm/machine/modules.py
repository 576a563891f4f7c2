"""The modules of a kernel that the guest loads, in the order in which they can be loaded."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_ROOT_AND_CHANNEL = "virtio_pci", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "overlay", "autofs4"
_DISK = "virtio_blk", "ext4"
_DEVICES = "virtio_net", "virtio_gpu", "e1000e", "nvme", "vfio_pci", "pci_stub", "uio_pci_generic", "button", "evdev"
_INTERFACES = "bonding", "bridge", "8021q", "macvlan", "vrf"
REQUIRED = *_ROOT_AND_CHANNEL, *_DISK, *_DEVICES, *_INTERFACES
FIRST_IF_THERE = "crc32c_generic", "crct10dif_generic"
"""Algorithms that other modules ask for by a name that is not in their dependencies."""


class MissingModuleError(Exception):
    """A package of a kernel lacks a module that the tests need."""


def select(tree: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the modules below lib/modules/VERSION, each after those that it needs."""
    available = {_name(path): path for path in tree.rglob("*.ko*")}
    built_in = {_name(Path(line)) for line in (tree / "modules.builtin").read_text().splitlines()}
    yielded = set(built_in)
    for name in FIRST_IF_THERE:
        if name in available:
            yield from _with_dependencies(name, available, yielded)
    for name in REQUIRED:
        yield from _with_dependencies(name, available, yielded)


def _with_dependencies(name: str, available: Mapping[str, Path], yielded: set[str]) -> Iterator[tuple[str, bytes]]:
    if name in yielded:
        return
    yielded.add(name)
    if name not in available:
        raise MissingModuleError(f"there is no module {name}, and the kernel does not include it")
    content = _content(available[name])
    for dependency in _dependencies(content):
        yield from _with_dependencies(dependency, available, yielded)
    yield name, content


def _dependencies(content: bytes) -> list[str]:
    found = re.findall(rb"\0depends=([^\0]*)(?=\0)", content)
    return [word.decode().replace("-", "_") for field in found for word in field.split(b",") if word]


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def _name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")
