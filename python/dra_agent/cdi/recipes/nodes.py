"""Device nodes of the host as a container gets them: looked at now, with type and numbers, or bound in.

It knows no vendor. Numbers are always given, so that no runtime looks them up by a path of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, DeviceNode, Mount, NodeType
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.device import DeviceNode as HostNode

PERMISSIONS = "rw"
"""Read and write; a container has no reason to make nodes of its own."""
_PLAIN_FILE_OPTIONS = ("bind", "rw", "nosuid", "noexec")


def of_device(nodes: Iterable[HostNode], *, device: str) -> ContainerEdits:
    """Give the edits for nodes that a device cannot do without; RetryableError names the first that is missing."""
    edits = ContainerEdits()
    for node in nodes:
        edits = edits.merged(edit(node.path, Path(node.host_path), device=device))
    return edits


def edit(path: str, host_path: Path, *, device: str) -> ContainerEdits:
    """Give the edits that bring one node in as `path`; RetryableError where it is missing or no device node."""
    try:
        status = os.lstat(host_path)
    except OSError as error:
        raise RetryableError(
            f"its device node {host_path} cannot be used: {error.strerror}",
            where=f"device {device}",
            todo="check that its driver is loaded and that the device is not lost (`dra-agent doctor`)",
        ) from error
    kind = _kind(status.st_mode)
    other_path = str(host_path) if str(host_path) != path else ""
    if kind:
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        return ContainerEdits(device_nodes=(DeviceNode(path, other_path, kind, major, minor, permissions=PERMISSIONS),))
    if other_path and stat.S_ISREG(status.st_mode):
        # A simulated host without the right to make nodes: a file stands for the node.
        return ContainerEdits(mounts=(Mount(other_path, path, _PLAIN_FILE_OPTIONS),))
    raise RetryableError(
        f"{host_path} is no device node ({stat.filemode(status.st_mode)})",
        where=f"device {device}",
        todo="remove it and let udev or the driver make the node again",
    )


def shared(host: Host, paths: Iterable[str], *, device: str) -> ContainerEdits:
    """Give the edits for nodes that come with a vendor's driver, where they exist."""
    edits = ContainerEdits()
    for path in paths:
        host_path = host.dev_path(path)
        if os.path.lexists(host_path):
            edits = edits.merged(edit(path, host_path, device=device))
    return edits


def link(path: str, host_path: Path) -> ContainerEdits:
    """Give the edits that bring a symbolic link to a node in under its own name; none where it does not exist.

    A bind mount resolves the link, so the container finds a node there: it opens because the device itself comes too.
    """
    if not host_path.exists():
        return ContainerEdits()
    return ContainerEdits(mounts=(Mount(str(host_path), path, _PLAIN_FILE_OPTIONS),))


def _kind(mode: int) -> NodeType:
    if stat.S_ISCHR(mode):
        return "c"
    return "b" if stat.S_ISBLK(mode) else ""
