"""Edits of one device, the interface of the vendors that provide them, and device nodes as edits."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dra_agent.cdi.model import ContainerEdits, DeviceNode, Mount, NodeType
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.model import DeviceNode as HostNode

NOTHING = ContainerEdits()


@dataclass(frozen=True, slots=True)
class DeviceEdits:
    """The edits that a container needs to use one device."""

    own: ContainerEdits
    """Of this device alone."""
    common: ContainerEdits = NOTHING
    """Of all devices of the same provider: applied once if a claim has several."""
    foreign_ids: tuple[str, ...] = ()
    """Devices of another CDI spec that has the missing edits; injected first."""
    notes: tuple[str, ...] = ()
    """Missing features in the container, for messages."""

    def with_setup(self, edits: ContainerEdits) -> DeviceEdits:
        """Add the edits of a set-up. Notes are dropped if it moves the interface into the container."""
        named = any(line.partition("=")[0].endswith("_IFNAME") for line in edits.env)
        notes = () if named else self.notes
        return DeviceEdits(self.own.merged(edits), self.common, self.foreign_ids, notes)


class EditProvider(Protocol):
    """Returns the edits that a container needs for a device now. One implementation per vendor."""

    def __call__(self, device: Device) -> DeviceEdits:
        """Return the edits of one device; raises RetryableError if it cannot be used now."""
        ...


@dataclass(frozen=True, slots=True)
class EditContext:
    """The context from which vendors create their providers: `dra_agent.cdi.edits.VENDOR.make(context)`."""

    host: Host
    directories: Sequence[Path]
    """The CDI directories of the runtime, lowest priority first."""
    program_finder: Callable[[str], Path | None]
    """Returns the path of a program of the host, such as a vendor's generator of CDI specs; None if it has none."""


PERMISSIONS = "rw"
"""Read and write; containers do not need mknod."""
_PLAIN_FILE_OPTIONS = ("bind", "rw", "nosuid", "noexec")


def required_node_edits(nodes: Iterable[HostNode], *, device: str) -> ContainerEdits:
    """Return the edits of nodes that must exist. Raises RetryableError with the first that is missing."""
    return node_edits([(node.path, node.host_path) for node in nodes], device=device)


def node_edits(
    paths: Iterable[tuple[str, str]],
    *,
    device: str,
    optional: Iterable[tuple[str, str]] = (),
    env: tuple[str, ...] = (),
) -> ContainerEdits:
    """Return the edits for nodes, given as (path in the container, path on the host), and for variables.

    Type and numbers are always set, so that no runtime looks them up by another path.

    Raises:
        RetryableError: A path is not a device node, or is missing and not `optional`.
    """
    nodes: list[DeviceNode] = []
    mounts: list[Mount] = []
    for group, is_optional in ((paths, False), (optional, True)):
        for path, host_path in group:
            try:
                status = os.lstat(host_path)
            except OSError as error:
                if is_optional and isinstance(error, FileNotFoundError):
                    continue
                raise _unusable(host_path, device, error) from error
            other_path = host_path if host_path != path else ""
            mode = status.st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                kind: NodeType = "c" if stat.S_ISCHR(mode) else "b"
                major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
                nodes.append(DeviceNode(path, other_path, kind, major, minor, permissions=PERMISSIONS))
            elif other_path and stat.S_ISREG(mode):
                # A simulated host without permission to create nodes: a regular file replaces the node.
                mounts.append(Mount(other_path, path, _PLAIN_FILE_OPTIONS))
            else:
                raise RetryableError(
                    f"{host_path} is not a device node ({stat.filemode(mode)})",
                    where=f"device {device}",
                    hint="remove it and let udev or the driver create the node again",
                )
    return ContainerEdits(env=env, device_nodes=tuple(nodes), mounts=tuple(mounts))


def _unusable(host_path: str, device: str, error: OSError) -> RetryableError:
    return RetryableError(
        f"its device node {host_path} cannot be used: {error.strerror}",
        where=f"device {device}",
        hint="check that its driver is loaded and that the device is not lost (`dra-agent doctor`)",
    )


def link_edits(path: str, host_path: Path) -> ContainerEdits:
    """Return the edit for a symbolic link to a node; empty if the link does not exist.

    A bind mount resolves the link, so the container has a node there. It can be opened, because the device is injected
    too.
    """
    if not host_path.exists():
        return ContainerEdits()
    return ContainerEdits(mounts=(Mount(str(host_path), path, _PLAIN_FILE_OPTIONS),))
