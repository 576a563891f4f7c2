"""Which agent of the host owns a device: one file per device, in a directory that all agents of the host share.

The ledger keeps two claims of one agent apart. Two agents with different state directories have two ledgers; these
files keep them apart. The files are below /run, so a reboot removes them together with everything that was prepared.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, RetryableError
from dra_agent.file_lock import keep_private, lock
from dra_agent.inventory.model import Device
from dra_agent.json_decode import decode_json
from dra_agent.prepare.ledger import DeviceHeldError, JournalLedger, LedgerEntry, Lookup

log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 5.0
"""Maximum timeout for the files of one claim. Owners hold a lock for one lease of the ledger."""
MAX_RECORD_BYTES = 1 << 20
"""Of one file; claims' UIDs have 36 bytes each."""
MAX_CLAIMS_IN_MESSAGE = 4


Unlock = Callable[[], None]
"""Releases the locked files of a started claim."""
_NOTHING_LOCKED: AbstractContextManager[Unlock] = nullcontext(lambda: None)


class _ReleasedMeanwhileError(Exception):
    """A claim that the ledger had holds nothing any more."""


class OwnerRecord(msgspec.Struct, frozen=True):
    """Content of an owner file; an empty file means that no agent owns the device."""

    owner: str
    """Id of a state directory. Agents of a rolling update share one."""
    state_dir: str
    pid: int
    claims: tuple[str, ...]
    """UIDs of the claims that hold the device or a part of it."""


class Ownership(Protocol):
    """The interface for `prepare`. Two implementations: real devices, and hosts where no other agent can exist."""

    def acquire(self, uid: str, devices: Iterable[Device], deadline: Deadline) -> AbstractContextManager[Unlock]:
        """Own the devices for a claim that is started in the ledger within the context; released if that raises.

        Until `Unlock` is called, or the context is left, no other agent acquires the devices, and no start of this one
        considers the claim as holding nothing. Enter it before a lease of the ledger, never within one.
        Raises DeviceHeldError where another agent of this host owns one, RetryableError where that is not known.
        """
        ...

    def release(self, uid: str, deadline: Deadline, devices: Collection[Device] | None = None) -> None:
        """Release the ownership of a claim's devices; None if not all of them are known now.

        Never raises: a file that remains is corrected at the next start.
        """
        ...

    def foreign_claims(self) -> frozenset[str]:
        """Return the UIDs of claims that other agents of this host prepared."""
        ...

    def reconcile(self, ledger: JournalLedger, lookup: Lookup) -> list[str]:
        """Reconcile the files with the ledger at start; return conflicts: devices that another agent owns."""
        ...


class NoOwnership:
    """Where no other agent can exist."""

    def acquire(self, uid: str, devices: Iterable[Device], deadline: Deadline) -> AbstractContextManager[Unlock]:
        """Do nothing."""
        return _NOTHING_LOCKED

    def release(self, uid: str, deadline: Deadline, devices: Collection[Device] | None = None) -> None:
        """Do nothing."""

    def foreign_claims(self) -> frozenset[str]:
        """Return nothing."""
        return frozenset()

    def reconcile(self, ledger: JournalLedger, lookup: Lookup) -> list[str]:
        """Do nothing."""
        return []


class DeviceOwnership:
    """Owner files below `directory`, one per PCI address; safe to use from several threads and processes.

    A file is locked before a lease of the ledger: while a file names a claim that is about to start, no process
    that compares the two reads one without the other.
    """

    def __init__(
        self,
        directory: Path,
        state_dir: Path,
        owner: Callable[[], str],
        aliases: Collection[str] = (),
    ) -> None:
        """`owner` returns the id of the state directory; RetryableError while it has none, and then owns nothing new.

        `aliases` are further ids by which earlier agents on this state directory owned devices.
        """
        self._directory = str(directory)
        self._state_dir = state_dir
        self._owner = owner
        self._aliases = frozenset(aliases)

    def acquire(self, uid: str, devices: Iterable[Device], deadline: Deadline) -> AbstractContextManager[Unlock]:
        """See Ownership.acquire."""
        names: dict[str, str] = {}
        for device in devices:
            names.setdefault(device.pci_address, device.name)
        return _Acquisition(self, uid, names, deadline.capped(LOCK_TIMEOUT_S))

    def release(self, uid: str, deadline: Deadline, devices: Collection[Device] | None = None) -> None:
        """See Ownership.release."""
        for address in self._own_addresses() if devices is None else {device.pci_address for device in devices}:
            self._remove_claims(address, lambda claim: claim == uid, deadline.capped(LOCK_TIMEOUT_S))

    def foreign_claims(self) -> frozenset[str]:
        """See Ownership.foreign_claims."""
        found: set[str] = set()
        for address in self._files():
            record = self._read(address)
            if record is not None and not self._is_own(record):
                found.update(record.claims)
        return frozenset(found)

    def reconcile(self, ledger: JournalLedger, lookup: Lookup) -> list[str]:
        """Implement Ownership.reconcile with one file per device."""

        def read(uid: str) -> LedgerEntry | None:
            with ledger.lease():
                return ledger.get(uid)

        def held(entry: LedgerEntry) -> list[Device | None]:
            return [lookup(item.pool, item.device) for item in entry.devices if not item.admin_access]

        def is_over(uid: str, address: str) -> bool:
            entry = read(uid)
            if entry is None:
                return True
            # The allocation of a claim can change after an agent was killed before its start was in the ledger.
            addresses = [None if device is None else device.pci_address for device in held(entry)]
            return None not in addresses and address not in addresses

        for address in self._own_addresses():
            self._remove_claims(address, partial(is_over, address=address), Deadline.of(LOCK_TIMEOUT_S))
        with ledger.lease():
            entries = ledger.entries()
        problems = []
        for entry in entries:
            devices = [device for device in held(entry) if device is not None]
            try:
                with self.acquire(entry.uid, devices, Deadline.of(LOCK_TIMEOUT_S)):
                    if read(entry.uid) is None:
                        raise _ReleasedMeanwhileError
            except _ReleasedMeanwhileError:
                continue
            except AgentError as error:
                problems.append(f"{entry.with_uid}: {error}")
        return problems

    def _claim(self, uid: str, address: str, name: str, deadline: Deadline) -> tuple[int, OwnerRecord | None]:
        """Lock a file and write the claim into it; return the locked file and its previous content."""
        self._owner()  # before a file is made
        path = f"{self._directory}/{address}"
        handle = _lock(path, deadline)
        try:
            content = _content(handle)
            record = _decode(content)
            if content and record is None:
                raise RetryableError(
                    "cannot determine which agent owns the device: the file is damaged",
                    where=path,
                    hint="remove it when no other agent of this host has prepared the device",
                )
            if record is not None and not self._is_own(record):
                raise self._refusal(record, address, name, path)
            claims = record.claims if record is not None else ()
            if uid not in claims or (record is not None and record.pid != os.getpid()):
                self._write(handle, len(content), tuple(dict.fromkeys((*claims, uid))), path)
        except BaseException:
            os.close(handle)
            raise
        return handle, record

    def _remove_claims(self, address: str, is_over: Callable[[str], bool], deadline: Deadline) -> None:
        """Remove claims from a file of this owner; a file that cannot be locked or written stays unchanged."""
        path = f"{self._directory}/{address}"
        try:
            handle = _lock(path, deadline, create=False)
        except FileNotFoundError:
            return
        except AgentError as error:
            log.warning("an owner file cannot be corrected", extra={"file": path, "reason": str(error)})
            return
        try:
            content = _content(handle)
            record = _decode(content)
            if record is None or not self._is_own(record):
                return
            remaining = tuple(uid for uid in record.claims if not is_over(uid))
            if remaining != record.claims:
                self._write(handle, len(content), remaining, path)
        except (OSError, AgentError) as error:
            log.warning("an owner file cannot be corrected", extra={"file": path, "reason": str(error)})
        finally:
            os.close(handle)

    def _write(self, handle: int, length: int, claims: tuple[str, ...], path: str) -> None:
        """Write a record over one of `length` bytes; without claims the file is emptied."""
        data = b""
        if claims:
            data = msgspec.json.encode(OwnerRecord(self._owner(), str(self._state_dir), os.getpid(), claims)) + b"\n"
        try:
            if claims:
                os.pwrite(handle, data, 0)
            if len(data) < length:
                os.ftruncate(handle, len(data))
        except OSError as error:
            raise _unusable(path, error) from error

    def _restore(self, handle: int, address: str, before: OwnerRecord | None) -> None:
        path = f"{self._directory}/{address}"
        try:
            self._write(handle, len(_content(handle)), before.claims if before is not None else (), path)
        except (OSError, AgentError) as error:
            log.warning("an owner file cannot be corrected", extra={"file": path, "reason": str(error)})

    def _refusal(self, record: OwnerRecord, address: str, name: str, path: str) -> DeviceHeldError:
        shown = ", ".join(record.claims[:MAX_CLAIMS_IN_MESSAGE])
        if (more := len(record.claims) - MAX_CLAIMS_IN_MESSAGE) > 0:
            shown += f" and {more} more"
        alive = is_running(record.pid)
        return DeviceHeldError(
            f"is held by another agent of this host, with state directory {record.state_dir} "
            f"(pid {record.pid}{'' if alive else ', not running'}), for claims {shown}",
            where=f"device {name} ({address})",
            public="is held by another agent of this host, which the agent's log names",
            hint="release those claims through that agent; run one agent per host"
            if alive
            else f"start that agent and release those claims; remove {path} only if its state directory was "
            "removed and no "
            "process uses the device",
        )

    def _own_addresses(self) -> list[str]:
        """List the addresses that this owner has files of."""
        records = ((address, self._read(address)) for address in self._files())
        return [address for address, record in records if record is not None and self._is_own(record)]

    def _is_own(self, record: OwnerRecord) -> bool:
        if record.owner in self._aliases:
            return True
        try:
            return record.owner == self._owner()
        except RetryableError:
            return False

    def _read(self, address: str) -> OwnerRecord | None:
        try:
            return _decode(Path(self._directory, address).read_bytes())
        except OSError:
            return None

    def _files(self) -> list[str]:
        try:
            return sorted(os.listdir(self._directory))  # noqa: PTH208 - names only
        except OSError:
            return []


class _Acquisition:
    """The locked files of a claim that starts; their previous content is restored if it fails."""

    def __init__(self, ownership: DeviceOwnership, uid: str, names: Mapping[str, str], deadline: Deadline) -> None:
        self._ownership = ownership
        self._uid = uid
        self._names = names
        self._deadline = deadline
        self._locked: list[tuple[str, int, OwnerRecord | None]] = []

    def __enter__(self) -> Unlock:
        try:
            for address, name in sorted(self._names.items()):
                handle, before = self._ownership._claim(self._uid, address, name, self._deadline)  # noqa: SLF001 - another class of this module
                self._locked.append((address, handle, before))
        except BaseException:
            self._restore()
            raise
        return self._unlock

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._restore()
        self._unlock()

    def _unlock(self) -> None:
        for _, handle, _ in self._locked:
            os.close(handle)
        self._locked.clear()

    def _restore(self) -> None:
        for address, handle, before in self._locked:
            self._ownership._restore(handle, address, before)  # noqa: SLF001 - another class of this module
        self._unlock()


class SimulatedOwnership(DeviceOwnership):
    """For simulated devices: owns none, and knows which claims agents of real devices prepared."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, directory, lambda: "")

    def acquire(self, uid: str, devices: Iterable[Device], deadline: Deadline) -> AbstractContextManager[Unlock]:
        """Do nothing."""
        return _NOTHING_LOCKED

    def release(self, uid: str, deadline: Deadline, devices: Collection[Device] | None = None) -> None:
        """Do nothing."""

    def reconcile(self, ledger: JournalLedger, lookup: Lookup) -> list[str]:
        """Do nothing."""
        return []


def is_running(pid: int) -> bool:
    """Return whether a process with this pid exists. In a pod other pods' processes are not visible."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _lock(path: str, deadline: Deadline, *, create: bool = True) -> int:
    """Open a file and lock it; raises FileNotFoundError if it is missing and must not be created."""
    try:
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0) | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno == errno.ENOENT and not create:
            raise
        raise _unusable(path, error) from error
    try:
        keep_private(handle)
        if not lock(handle, deadline):
            raise RetryableError(
                "is locked by another process, which does not unlock it",
                where=path,
                hint="check which agent does not respond",
            )
        return handle
    except OSError as error:
        os.close(handle)
        raise _unusable(path, error) from error
    except BaseException:
        os.close(handle)
        raise


def _unusable(path: str, error: OSError) -> RetryableError:
    return RetryableError(
        f"the owner of the device cannot be recorded: {error.strerror}",
        where=path,
        hint="make that directory writable for the agent; --run-dir names another one for all agents of this host",
    )


def _content(handle: int) -> bytes:
    return os.pread(handle, MAX_RECORD_BYTES, 0)


def _decode(content: bytes) -> OwnerRecord | None:
    try:
        return decode_json(content.partition(b"\n")[0], type=OwnerRecord)
    except msgspec.DecodeError:
        return None
