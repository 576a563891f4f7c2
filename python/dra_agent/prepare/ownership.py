"""Which agent of the host owns a device: one file per device, in a directory that all agents of the host share.

The ledger keeps two claims of one agent apart. Two agents with different state directories have two ledgers; these
files keep them apart. The files are below /run, so a reboot removes them together with everything that was prepared.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from dra_agent.errors import AgentError, RetryableError
from dra_agent.inventory.device import Device
from dra_agent.prepare.ports import DeviceHeldError, Ledger, Lookup

LOCK_TIMEOUT_S = 5.0
"""For the lock on one file. Owners keep it for microseconds."""
LOCK_POLL_S = 0.001
MAX_CLAIMS_IN_MESSAGE = 4


class OwnerRecord(msgspec.Struct, frozen=True):
    """Content of an owner file; an empty file means that no agent owns the device."""

    owner: str
    """Id of a state directory. Agents of a rolling update share one."""
    state_dir: str
    pid: int
    claims: tuple[str, ...]
    """UIDs of the claims that hold the device or a part of it."""


class Ownership(Protocol):
    """What `prepare` needs. Two implementations: real devices, and hosts where no other agent can exist."""

    def acquire(self, uid: str, devices: Iterable[Device]) -> None:
        """Own the devices for a claim.

        Raises DeviceHeldError where another agent of this host owns one, RetryableError where that is not known.
        """
        ...

    def release(self, uid: str) -> None:
        """Give up what the claim owned. Never raises: a file that remains is corrected at the next start."""
        ...

    def foreign_claims(self) -> frozenset[str]:
        """Return the UIDs of claims that other agents of this host prepared."""
        ...

    def reconcile(self, ledger: Ledger, lookup: Lookup) -> list[str]:
        """Make the files say what the ledger says, at start; return what is wrong: a device that another agent took."""
        ...


class NoOwnership:
    """Where no other agent can exist."""

    def acquire(self, uid: str, devices: Iterable[Device]) -> None:
        """Do nothing."""

    def release(self, uid: str) -> None:
        """Do nothing."""

    def foreign_claims(self) -> frozenset[str]:
        """Return nothing."""
        return frozenset()

    def reconcile(self, ledger: Ledger, lookup: Lookup) -> list[str]:
        """Do nothing."""
        return []


class DeviceOwnership:
    """Owner files below `directory`, one per PCI address; safe to use from several threads and processes."""

    def __init__(self, directory: Path, state_dir: Path, owner: str) -> None:
        self._directory = directory
        self._state_dir = state_dir
        self._owner = owner
        self._addresses: dict[str, frozenset[str]] = {}

    def acquire(self, uid: str, devices: Iterable[Device]) -> None:
        """See Ownership.acquire."""
        names: dict[str, str] = {}
        for device in devices:
            names.setdefault(device.pci_address, device.name)
        taken: list[str] = []
        try:
            for address, name in sorted(names.items()):
                self._acquire(uid, address, name)
                taken.append(address)
        except AgentError:
            for address in taken:
                self._drop(self._directory / address, {uid})
            raise
        self._addresses[uid] = frozenset(names)

    def release(self, uid: str) -> None:
        """See Ownership.release."""
        addresses = self._addresses.pop(uid, None)
        # Another process on the same state directory, or an earlier one, may have prepared the claim.
        paths = self._files() if addresses is None else [self._directory / address for address in addresses]
        for path in paths:
            self._drop(path, {uid})

    def foreign_claims(self) -> frozenset[str]:
        """See Ownership.foreign_claims."""
        found: set[str] = set()
        for path in self._files():
            record = _decode(_read(path))
            if record is not None and record.owner != self._owner:
                found.update(record.claims)
        return frozenset(found)

    def reconcile(self, ledger: Ledger, lookup: Lookup) -> list[str]:
        """See Ownership.reconcile."""
        records = {path: _decode(_read(path)) for path in self._files()}
        # After the files: a claim is in the ledger before it is in a file, and for longer.
        with ledger.turn():
            entries = ledger.entries()
        known = {entry.uid for entry in entries}
        for path, record in records.items():
            if record is not None and record.owner == self._owner:
                self._drop(path, {uid for uid in record.claims if uid not in known})
        problems = []
        for entry in entries:
            held = [lookup(item.pool, item.device) for item in entry.devices if not item.admin_access]
            try:
                self.acquire(entry.uid, [device for device in held if device is not None])
            except AgentError as error:
                problems.append(f"claim {entry.namespace}/{entry.name} ({entry.uid}): {error}")
        return problems

    def _acquire(self, uid: str, address: str, name: str) -> None:
        path = self._directory / address
        with _locked(path) as handle:
            content = _read_handle(handle)
            record = _decode(content)
            if content and record is None:
                raise RetryableError(
                    "cannot tell which agent owns the device: the file is damaged",
                    where=str(path),
                    todo="remove it when no other agent of this host has prepared the device",
                )
            if record is not None and record.owner != self._owner:
                raise self._refusal(record, address, name, path)
            claims = record.claims if record is not None else ()
            if uid not in claims or (record is not None and record.pid != os.getpid()):
                self._write(handle, tuple(dict.fromkeys((*claims, uid))), path)

    def _drop(self, path: Path, uids: set[str]) -> None:
        try:
            with _locked(path, create=False) as handle:
                record = _decode(_read_handle(handle))
                if record is None or record.owner != self._owner or not uids.intersection(record.claims):
                    return
                left = tuple(uid for uid in record.claims if uid not in uids)
                if left:
                    self._write(handle, left, path)
                else:
                    os.ftruncate(handle, 0)
        except (OSError, AgentError):
            return

    def _write(self, handle: int, claims: tuple[str, ...], path: Path) -> None:
        data = msgspec.json.encode(OwnerRecord(self._owner, str(self._state_dir), os.getpid(), claims)) + b"\n"
        try:
            os.pwrite(handle, data, 0)
            os.ftruncate(handle, len(data))
        except OSError as error:
            raise _unusable(path, error) from error

    def _refusal(self, record: OwnerRecord, address: str, name: str, path: Path) -> DeviceHeldError:
        shown = ", ".join(record.claims[:MAX_CLAIMS_IN_MESSAGE])
        if (more := len(record.claims) - MAX_CLAIMS_IN_MESSAGE) > 0:
            shown += f" and {more} more"
        alive = is_running(record.pid)
        return DeviceHeldError(
            f"is held by another agent of this host, with state directory {record.state_dir} "
            f"(pid {record.pid}{'' if alive else ', not running'}), for claims {shown}",
            where=f"device {name} ({address})",
            todo="release those claims through that agent; run one agent per host"
            if alive
            else f"start that agent and release those claims; remove {path} only if its state directory is gone and no "
            "process uses the device",
        )

    def _files(self) -> list[Path]:
        try:
            return [self._directory / name for name in sorted(os.listdir(self._directory))]  # noqa: PTH208 - names only
        except OSError:
            return []


class SimulatedOwnership(DeviceOwnership):
    """For simulated devices: owns none, and knows which claims agents of real devices prepared."""

    def acquire(self, uid: str, devices: Iterable[Device]) -> None:
        """Do nothing."""

    def release(self, uid: str) -> None:
        """Do nothing."""

    def reconcile(self, ledger: Ledger, lookup: Lookup) -> list[str]:
        """Do nothing."""
        return []


def is_running(pid: int) -> bool:
    """Tell whether a process of this id exists. In a pod other pods' processes are not visible."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _locked(path: Path, *, create: bool = True) -> Iterator[int]:
    try:
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno == errno.ENOENT and not create:
            raise
        raise _unusable(path, error) from error
    try:
        end = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise RetryableError(
                        f"is locked by another process for {LOCK_TIMEOUT_S:.0f} s",
                        where=str(path),
                        todo="check which agent does not answer",
                    ) from None
                time.sleep(LOCK_POLL_S)
        yield handle
    finally:
        os.close(handle)


def _unusable(path: Path, error: OSError) -> RetryableError:
    return RetryableError(
        f"the owner of the device cannot be recorded: {error.strerror}",
        where=str(path),
        todo="make that directory writable for the agent; --run-dir names another one for all agents of this host",
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _read_handle(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


def _decode(content: bytes) -> OwnerRecord | None:
    try:
        return msgspec.json.decode(content.partition(b"\n")[0], type=OwnerRecord)
    except msgspec.MsgspecError:
        return None
