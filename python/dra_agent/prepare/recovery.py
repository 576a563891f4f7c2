"""Repairs the state of earlier agents: started claims, prepared claims, and files of claims that hold nothing.

Each claim is repaired by a separate call, so that one that hangs delays neither the others nor the agent. Claims that
an exited process started are also undone when another claim needs their devices: work on a claim holds the locks of all
its devices, so a started claim with free locks is abandoned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Executor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.errors import AgentError, RetryableError
from dra_agent.inventory.model import device_key
from dra_agent.prepare.claim_files import ClaimFiles
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from dra_agent.prepare.locks import KeyedLocks, LockedError
from dra_agent.prepare.ownership import Ownership
from dra_agent.prepare.setup import DeviceSetup, Kind, OrphanCleaner
from dra_agent.threads import NoThreadError

log = logging.getLogger(__name__)

REPAIR_TIMEOUT_S = 30.0
"""Timeout of the repair of one claim. A call that hangs continues in the background, and keeps its locks."""
_T = TypeVar("_T")


class RecoveryReport(msgspec.Struct, frozen=True):
    """Result of `recover`: uids of claims by outcome."""

    kept: tuple[str, ...] = ()
    """Prepared before, and intact."""
    rebuilt: tuple[str, ...] = ()
    """Prepared before; the CDI spec or a metadata file was missing or had been changed, and was written again."""
    rolled_back: tuple[str, ...] = ()
    """Started but not complete: rolled back, the devices are free."""
    removed: tuple[str, ...] = ()
    """CDI specs and metadata files of claims that hold nothing: removed."""
    problems: tuple[str, ...] = ()
    """Failed repairs, with claim and reason; the claim still holds its devices."""
    busy: tuple[str, ...] = ()
    """Skipped: work is in progress."""


class CallRunner(Protocol):
    """Makes a call of a repair. Implementations: `run_inline`, and `ExecutorRunner` with a timeout."""

    def __call__(self, description: str, call: Callable[[], _T]) -> _T:
        """Return the result of `call`. Raises RetryableError if it hangs; `description` is for that message."""
        ...


def run_inline(description: str, call: Callable[[], _T]) -> _T:
    """Call it without a timeout."""
    del description
    return call()


class ClosedRunnerError(RetryableError):
    """No more calls are made: the agent stops."""


class ExecutorRunner:
    """Makes each call on a thread of an executor, with a timeout."""

    def __init__(self, executor: Executor, timeout_s: float = REPAIR_TIMEOUT_S) -> None:
        self._executor = executor
        self.timeout_s = timeout_s

    def __call__(self, description: str, call: Callable[[], _T]) -> _T:
        """Return the result of `call`. Raises RetryableError after the timeout; the call continues.

        Raises ClosedRunnerError if the executor takes no more calls.
        """
        try:
            future = self._executor.submit(call)
        except NoThreadError:
            raise
        except RuntimeError as error:
            raise ClosedRunnerError("the agent is stopping") from error
        try:
            return future.result(self.timeout_s)
        except CancelledError as error:
            raise ClosedRunnerError("the agent is stopping") from error
        except FutureTimeoutError:
            if future.done():
                return future.result()  # or the call's own timeout
            future.cancel()
            raise RetryableError(
                f"{description} has not ended within {self.timeout_s:.0f} s",
                hint="it continues in the background; `dra-agent doctor` and the kernel log name the call that hangs",
            ) from None


def repair_all(
    entries: Iterable[LedgerEntry], repair: Callable[[str], bool | None], run_call: CallRunner = run_inline
) -> RecoveryReport:
    """Repair all claims: `repair` returns whether files were written again, None if the claim holds nothing."""
    kept: list[str] = []
    rebuilt: list[str] = []
    rolled_back: list[str] = []
    problems: list[str] = []
    busy: list[str] = []
    for entry in entries:
        try:
            repaired = run_call(f"repair of claim {entry.uid}", partial(repair, entry.uid))
        except ClosedRunnerError:
            break  # the next start repairs the other claims
        except LockedError:
            busy.append(entry.uid)
        except AgentError as error:
            problems.append(f"{entry.with_uid}: {error}")
            log.warning("failed to repair claim", extra={"claim": entry.uid, "problem": str(error)})
        except Exception as error:  # a bug with one claim must not stop the others
            problems.append(f"{entry.with_uid}: unexpected {error!r}")
            log.exception("failed to repair claim", extra={"claim": entry.uid})
        else:
            {True: rebuilt, False: kept, None: rolled_back}[repaired].append(entry.uid)
            if repaired:
                log.warning("CDI spec was missing or changed, and was written again", extra={"claim": entry.uid})
    return RecoveryReport(tuple(kept), tuple(rebuilt), tuple(rolled_back), problems=tuple(problems), busy=tuple(busy))


def clean_orphans(
    setups: Mapping[Kind, DeviceSetup], is_held: Callable[[str], bool], run_call: CallRunner
) -> list[str]:
    """Undo set-ups of claims that hold nothing, which exist after the ledger was lost. Returns error messages."""
    problems = []
    for setup in setups.values():
        if isinstance(setup, OrphanCleaner):
            try:
                run_call(f"removing leftovers of {setup.kind[1]}", partial(setup.prune, is_held))
            except AgentError as error:
                problems.append(str(error))
    return problems


class ClaimRecovery:
    """Repairs the claims of one ledger, and removes files and set-ups of claims that hold nothing.

    The `recovery` of a Preparer, with which it shares locks. Safe to use from several threads.
    """

    def __init__(
        self,
        ledger: JournalLedger,
        files: ClaimFiles,
        setups: Mapping[Kind, DeviceSetup],
        ownership: Ownership,
        *,
        claim_locks: KeyedLocks,
        device_locks: KeyedLocks,
        undo: Callable[[LedgerEntry, Deadline], None],
        rebuild: Callable[[LedgerEntry, Deadline], bool],
    ) -> None:
        """`undo` rolls back a claim. `rebuild` checks and repairs a completed one; it returns whether it wrote files.

        Both are called with the locks of the claim and of its devices.
        """
        self._ledger = ledger
        self._files = files
        self._setups = setups
        self._ownership = ownership
        self._claim_locks = claim_locks
        self._device_locks = device_locks
        self._undo = undo
        self._rebuild = rebuild

    def recover(self, run_call: CallRunner = run_inline) -> RecoveryReport:
        """Repair the state that earlier agents left, claim by claim, while new claims are served.

        Claims with work in progress, here or in another agent, are skipped. `run_call` makes each call, and may abandon
        one that hangs.
        """
        report = self.repair(run_call)
        removed: tuple[str, ...] = ()
        problems = list(report.problems)
        try:
            removed = run_call("removing files of no claim", self._remove_orphaned_files)
        except AgentError as error:
            problems.append(str(error))
        problems += clean_orphans(self._setups, lambda uid: self._entry(uid) is not None, run_call)
        report = msgspec.structs.replace(report, removed=removed, problems=tuple(problems))
        log.info(
            "claims of an earlier run checked",
            extra={name: len(getattr(report, name)) for name in report.__struct_fields__},
        )
        return report

    def repair(self, run_call: CallRunner = run_inline) -> RecoveryReport:
        """Check every claim while the agent runs: restore removed files, roll back abandoned claims.

        The kubelet calls only when it starts a pod: a spec that is lost in between would stay lost. Claims with work in
        progress are skipped.
        """
        with self._ledger.lease():
            entries = self._ledger.entries()
        return repair_all(entries, self._repair_one, run_call)

    def _repair_one(self, uid: str) -> bool | None:
        no_wait, purpose = Deadline.of(0), f"repair of claim {uid}"
        with self._claim_locks.hold([uid], no_wait, purpose):
            entry = self._entry(uid)
            if entry is None:
                return None  # released in the meantime
            devices = lock_names(entry.devices)
            with self._device_locks.hold(devices, no_wait, purpose):
                now = self._entry(uid)
                if now is None or lock_names(now.devices) != devices:
                    return None
                deadline = Deadline.of(CALL_TIMEOUT_S)
                if now.state == "started":
                    self._undo(now, deadline)
                    return None
                return self._rebuild(now, deadline)

    def _entry(self, uid: str) -> LedgerEntry | None:
        """Read the current state of a claim, which another agent may have changed."""
        with self._ledger.lease():
            return self._ledger.get(uid)

    def _remove_orphaned_files(self) -> tuple[str, ...]:
        """Remove files of claims that hold nothing, and temporary files of exited writers; return the claims' uids.

        Claims are prepared meanwhile. A claim is in the ledger, and names its devices as owned, before it has files:
        files are listed first.
        """
        with_spec, with_metadata = self._files.claims_with_spec(), self._files.claims_with_metadata()
        foreign = self._ownership.foreign_claims()
        with self._ledger.lease():
            known = {entry.uid for entry in self._ledger.entries()}
        removed = tuple(filter(self._remove_if_orphaned, sorted((with_spec - foreign | with_metadata) - known)))
        self._files.remove_leftovers(with_metadata)
        return removed

    def _remove_if_orphaned(self, uid: str) -> bool:
        """Remove the files of a claim if it holds nothing, and no agent works on it; return whether there were any."""
        try:
            with self._claim_locks.hold([uid], Deadline.of(0), f"removing files of claim {uid}"), self._ledger.lease():
                return self._ledger.get(uid) is None and self._files.remove(uid)
        except LockedError:
            return False


def lock_names(devices: Iterable[ClaimDevice | HeldDevice]) -> set[str]:
    """Return the lock names of a claim's allocated devices; without the parent devices of partitions."""
    return {f"{item.pool}/{item.device}" for item in devices if isinstance(item, ClaimDevice) or item.request}


def undo_abandoned(
    entry: LedgerEntry,
    ledger: JournalLedger,
    claims: KeyedLocks,
    devices: KeyedLocks,
    undo: Callable[[LedgerEntry], None],
    deadline: Deadline,
) -> bool:
    """Roll back abandoned claims that hold devices of another claim. The caller has the locks. True if there were any.

    Further locks are acquired without waiting, because they are out of order here.
    """
    own_locks, no_wait = lock_names(entry.devices), Deadline.of(0)
    with ledger.lease(deadline):
        entries = ledger.entries()
    undone = False
    for other in entries:
        if other.state != "started" or other.uid == entry.uid or not _overlap(other, entry):
            continue
        purpose = f"undoing claim {other.uid}"
        try:
            with (
                claims.hold([other.uid], no_wait, purpose),
                devices.hold(lock_names(other.devices) - own_locks, no_wait, purpose),
            ):
                with ledger.lease(deadline):
                    now = ledger.get(other.uid)
                if now is not None and now.state == "started":
                    undo(now)
                undone = True
        except LockedError:
            continue
        except AgentError as error:
            log.warning("abandoned claim not undone", extra={"claim": other.uid, "reason": str(error)})
    return undone


def _overlap(one: LedgerEntry, other: LedgerEntry) -> bool:
    devices = {device_key(item.pool, item.device) for item in other.devices}
    return any(device_key(item.pool, item.device) in devices for item in one.devices)
