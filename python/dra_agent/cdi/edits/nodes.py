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
from dra_agent.inventory.model import DeviceNode as HostNode

PERMISSIONS = "rw"
"""Read and write; a container has no reason to make nodes of its own."""
_PLAIN_FILE_OPTIONS = ("bind", "rw", "nosuid", "noexec")


def of_device(nodes: Iterable[HostNode], *, device: str) -> ContainerEdits:
    """Give the edits for nodes that a device cannot do without; RetryableError names the first that is missing."""
    return edits(((node.path, node.host_path) for node in nodes), device=device)


def edits(paths: Iterable[tuple[str, str]], *, device: str, optional: bool = False) -> ContainerEdits:
    """Give the edits that bring nodes in, each as (path in the container, path on the host).

    RetryableError where one is missing, unless `optional`, or is no device node.
    """
    nodes: list[DeviceNode] = []
    mounts: list[Mount] = []
    for path, host_path in paths:
        try:
            status = os.lstat(host_path)
        except FileNotFoundError as error:
            if optional:
                continue
            raise _unusable(host_path, device, error) from error
        except OSError as error:
            raise _unusable(host_path, device, error) from error
        other_path = host_path if host_path != path else ""
        if kind := _kind(status.st_mode):
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
            nodes.append(DeviceNode(path, other_path, kind, major, minor, permissions=PERMISSIONS))
        elif other_path and stat.S_ISREG(status.st_mode):
            # A simulated host without the right to make nodes: a file stands for the node.
            mounts.append(Mount(other_path, path, _PLAIN_FILE_OPTIONS))
        else:
            raise RetryableError(
                f"{host_path} is no device node ({stat.filemode(status.st_mode)})",
                where=f"device {device}",
                hint="remove it and let udev or the driver make the node again",
            )
    return ContainerEdits(device_nodes=tuple(nodes), mounts=tuple(mounts))


def _unusable(host_path: str, device: str, error: OSError) -> RetryableError:
    return RetryableError(
        f"its device node {host_path} cannot be used: {error.strerror}",
        where=f"device {device}",
        hint="check that its driver is loaded and that the device is not lost (`dra-agent doctor`)",
    )


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
