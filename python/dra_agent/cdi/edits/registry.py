"""The edit provider of each device: by its driver, family and vendor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from dra_agent.cdi.edits.generic import passed_through, plain
from dra_agent.cdi.edits.network import network
from dra_agent.cdi.edits.provider import DeviceEdits, EditContext, EditProvider
from dra_agent.cdi.registry import DEFAULT_DIRECTORIES
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.passthrough import PASSTHROUGH
from dra_agent.inventory.vendors import gpu_vendor
from dra_agent.path_search import find_program

_VFIO_ROLES = frozenset({"vfio", "vfio-control"})


class EditProviders:
    """All edit providers of one host. Thread-safe."""

    def __init__(
        self,
        host: Host,
        *,
        directories: Sequence[Path] = DEFAULT_DIRECTORIES,
        program_finder: Callable[[str], Path | None] = lambda name: None,
    ) -> None:
        """`directories`: CDI directories of the runtime, lowest priority first. `program_finder`: see EditContext."""
        self._context = EditContext(host, directories, program_finder)
        self._lock = threading.Lock()
        self._vendors: dict[str, EditProvider] = {}

    def edits(self, device: Device) -> DeviceEdits:
        """Return the current edits of a device.

        Raises:
            RetryableError: The device cannot be used now: a node is missing, or a tool hangs.
        """
        return self._provider(device)(device)

    def _provider(self, device: Device) -> EditProvider:
        if PASSTHROUGH in device.identity:
            return passed_through
        for node in device.nodes:
            if node.role in _VFIO_ROLES:
                return plain  # for a virtual machine or a user space driver, for every kind of device
        if device.family == "nic":
            return network
        if device.family == "gpu" and gpu_vendor(device.vendor) is not None:
            return self._vendor(device.vendor)
        return plain

    def _vendor(self, name: str) -> EditProvider:
        with self._lock:
            if name not in self._vendors:
                self._vendors[name] = import_module(f"dra_agent.cdi.edits.{name}").make(self._context)
            return self._vendors[name]


def host_program(host: Host, name: str) -> Path | None:
    """Return the path of a program; None if missing, or on a simulated host, which a program cannot read."""
    return find_program(name) if host.dev == Path("/dev") else None
