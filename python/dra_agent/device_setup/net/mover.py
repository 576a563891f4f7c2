"""Moves an interface into the network namespace of a container that is starting, on request of the container's hook."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

import msgspec

from dra_agent.cdi.names import check_uid
from dra_agent.deadline import Deadline
from dra_agent.device_setup import rtnetlink
from dra_agent.device_setup.net.interfaces import Interfaces
from dra_agent.device_setup.net.parameters import OriginalInterface
from dra_agent.device_setup.state_files import StateFiles
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.json_decode import decode_json
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, KeyedLocks

log = logging.getLogger(__name__)

TASK = "interface"
"""Task of the hook, and of its request."""
_PROC = Path("/proc")
"""Of the running kernel, also for a simulated host: containers are real."""
_POLL_INTERVAL_S = 0.2
_DEVICE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class MoveTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of the hook: one line on the socket."""

    claim: str
    key: str
    task: str
    pid: int
    """The first process of the container, which waits for the response."""


class InterfaceMover:
    """Thread-safe; it uses the locks and state files of the setup."""

    def __init__(
        self,
        interfaces: Interfaces,
        originals: StateFiles[OriginalInterface],
        locks: KeyedLocks,
        return_timeout_s: float,
    ) -> None:
        self._interfaces = interfaces
        self._originals = originals
        self._locks = locks
        self._return_timeout_s = return_timeout_s

    def move(self, line: bytes) -> bool:
        """Move the interface to the container; PermanentError or RetryableError with the reason if that fails."""
        try:
            task = decode_json(line, type=MoveTask)
        except msgspec.DecodeError as error:
            raise PermanentError(f"invalid: {error}", where="a request for an interface") from error
        uid = check_uid(task.claim)
        device = task.key.partition("/")[0]
        if not _DEVICE.fullmatch(device):
            raise PermanentError("is not a device name", where=repr(task.key[:200]))
        with self._locks.hold([device], Deadline.of(SETUP_TIMEOUT_S), f"a container of claim {uid}"):
            original = self._originals.read(device)
            if original is None or original.uid != uid or original.interface.name is None:
                raise PermanentError("has no such interface to move", where=f"claim {uid}, device {device}")
            network = self._open(task.pid)
            try:
                self._move_into(network, device, original)
            finally:
                os.close(network)
        return True

    def _move_into(self, network: int, device: str, original: OriginalInterface) -> None:
        name = os.fspath(Path(f"/proc/self/fd/{network}").readlink())
        where = f"device {device} of claim {original.uid}"
        deadline = time.monotonic() + self._return_timeout_s
        before = original
        if name not in (original.network, original.moving):
            # Changes of a process that hangs or is killed must be restored, too.
            original = msgspec.structs.replace(original, moving=name)
            self._originals.write(device, original)
        while True:
            done = rtnetlink.query(self._move(network, name, original))
            # The kernel removes a network namespace some time after its last process; then the interface returns.
            if done.state != "away" or done.refused or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_INTERVAL_S)
        if done.state in ("moved", "there"):
            now = msgspec.structs.replace(original, network=name, moving="", complete=not done.refused)
            if now != original:
                self._originals.write(device, now)
        elif original != before:
            self._originals.write(device, before)  # it was not moved
        if done.refused:
            raise PermanentError(f"{original.interface.name}: {done.refused}", where=where)
        if done.state == "taken":
            raise PermanentError(
                f"the pod's network has another interface {original.interface.name}",
                where=where,
                hint="choose another interface.name",
            )
        if done.state == "away":
            last = f"; it was moved to {original.network}" if original.network else ""
            raise RetryableError(
                f"its interface {original.ifname} is neither on the host nor in the pod's network {name}{last}",
                where=where,
                hint="only one pod at a time can use it: stop the other one (`lsns -t net` lists its processes)",
            )
        if done.state == "moved":
            extra = {"claim": original.uid, "device": device, "interface": original.interface.name, "network": name}
            log.info("interface moved", extra=extra)

    def _move(self, network: int, where: str, original: OriginalInterface) -> rtnetlink.MoveRequest:
        desired = original.interface
        is_configured = desired.addresses is not None
        return rtnetlink.MoveRequest(
            network,
            self._on_host(original),
            original.address,
            original.hardware_address,
            str(desired.name),
            desired.mtu,
            original.addresses if desired.addresses is None else desired.addresses,
            is_configured,
            tuple((route.destination, route.gateway) for route in desired.routes),
            original.may_have_address,
            "unknown" if original.network != where else "complete" if original.complete else "moved",
        )

    def _on_host(self, original: OriginalInterface) -> rtnetlink.HostInterface | None:
        try:
            name = self._interfaces.find(original.address, original.port, original.ifname, original.interface.name)
            if name is None:
                return None
            return rtnetlink.HostInterface(self._interfaces.index(name), self._interfaces.hardware_address(name))
        except (OSError, ValueError):
            return None  # it was removed concurrently

    def _open(self, pid: int) -> int:
        """Open the network namespace of a container; PermanentError if it is that of the host."""
        own = (_PROC / "self/ns/net").stat()
        try:
            network = os.open(_PROC / str(pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise PermanentError(
                f"the container's network cannot be opened: {error.strerror}",
                where=f"process {pid}",
                hint="run the agent as a host service, or with hostPID and privileged",
            ) from error
        found = os.fstat(network)
        if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
            os.close(network)
            raise PermanentError(
                "the container is in the host's network, where the interface is already",
                where=f"process {pid}",
                hint="leave interface.name out for pods with hostNetwork",
            )
        return network
