"""KFD in the midst of a change of the mode, as drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c leaves it to who looks then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import NODES, gpu_nodes

MODE = "current_compute_partition"


@contextmanager
def incomplete_nodes(host: Host, address: str, *, left: int) -> Iterator[None]:
    """Show only so many of the nodes that a GPU has, until the end of the block.

    As in the kernel, a change of nodes counts the generation, and nodes behind those that are gone move down.
    """
    folder = host.sysfs / NODES
    aside = host.sysfs.parent / "aside"
    aside.mkdir(exist_ok=True)
    hidden = {str(node.node_id) for node in gpu_nodes(host, [])[address][left:]}
    names = sorted((node.name for node in folder.iterdir()), key=int)
    shown = [name for name in names if name not in hidden]

    def move(pairs: list[tuple[Path, Path]]) -> None:
        for old, new in pairs:
            old.rename(new)
        generation = folder.parent / "generation_id"
        generation.chmod(0o644)
        generation.write_text(f"{int(generation.read_text()) + 1}\n")

    gone = [(folder / name, aside / name) for name in names if name in hidden]
    moved = [(folder / name, folder / str(number)) for number, name in enumerate(shown) if name != str(number)]
    move([*gone, *moved])
    try:
        yield
    finally:
        move([(new, old) for old, new in reversed([*gone, *moved])])


def mode_file(host: Host, address: str) -> Path:
    return (host.sysfs / "bus/pci/devices" / address).resolve() / MODE


def unread(host: Host, address: str) -> None:
    """Make a later read of the mode show: relatime keeps the time of a file's first read."""
    path = mode_file(host, address)
    os.utime(path, (0, path.stat().st_mtime))


def was_read(host: Host, address: str) -> bool:
    return mode_file(host, address).stat().st_atime > 0
