"""Repair of what earlier agents left: begun claims, prepared claims, and files of claims that hold nothing.

One claim at a time, and each apart: one that hangs holds up neither the others nor the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Protocol, TypeVar

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.errors import AgentError, RetryableError
from dra_agent.prepare.ledger_types import LedgerEntry
from dra_agent.prepare.locks import LockedError
from dra_agent.prepare.result import RecoveryReport
from dra_agent.prepare.setup import DeviceSetup, Kind, OrphanCleaner

log = logging.getLogger(__name__)

REPAIR_TIMEOUT_S = 30.0
"""Seconds that a round of repairs waits for one claim; what hangs goes on without it, and keeps its locks."""
_T = TypeVar("_T")


class Apart(Protocol):
    """How a step of a repair is made: right away, or where one that hangs is left behind."""

    def __call__(self, what: str, call: Callable[[], _T]) -> _T:
        """Make a call and give its result; RetryableError where it does not come back."""
        ...


def directly(what: str, call: Callable[[], _T]) -> _T:
    """Make a call and wait for it as long as it takes."""
    del what
    return call()


class OnThreads:
    """Makes each call on a thread of an executor, and waits for it with a limit."""

    def __init__(self, executor: Executor, timeout_s: float = REPAIR_TIMEOUT_S) -> None:
        self._executor = executor
        self._timeout_s = timeout_s

    def __call__(self, what: str, call: Callable[[], _T]) -> _T:
        """Make a call; RetryableError where it takes longer, and it goes on without being waited for."""
        future = self._executor.submit(call)
        try:
            return future.result(self._timeout_s)
        except FutureTimeoutError:
            if future.done():
                return future.result()  # or the call's own timeout
            future.cancel()
            raise RetryableError(
                f"{what} has not ended within {self._timeout_s:.0f} s",
                hint="it goes on; the kernel's log (dmesg) and `dra-agent doctor` say what hangs",
            ) from None


def repair_all(
    entries: Iterable[LedgerEntry], mend: Callable[[str], bool | None], apart: Apart = directly
) -> RecoveryReport:
    """Repair claim after claim: `mend` answers whether it had to be written again, None where it holds nothing now."""
    kept: list[str] = []
    rebuilt: list[str] = []
    rolled_back: list[str] = []
    problems: list[str] = []
    busy: list[str] = []
    for entry in entries:
        try:
            mended = apart(f"repair of claim {entry.uid}", partial(mend, entry.uid))
        except LockedError:
            busy.append(entry.uid)
        except AgentError as error:
            problems.append(f"claim {entry.namespace}/{entry.name} ({entry.uid}): {error}")
            log.warning("claim not mended", extra={"claim": entry.uid, "problem": str(error)})
        except Exception as error:  # one claim's bug must not keep the agent from its work
            problems.append(f"claim {entry.namespace}/{entry.name} ({entry.uid}): unexpected {error!r}")
            log.exception("claim not mended", extra={"claim": entry.uid})
        else:
            {True: rebuilt, False: kept, None: rolled_back}[mended].append(entry.uid)
            if mended:
                log.warning("CDI spec was missing or changed, and was written again", extra={"claim": entry.uid})
    return RecoveryReport(tuple(kept), tuple(rebuilt), tuple(rolled_back), problems=tuple(problems), busy=tuple(busy))


def remove_strangers(
    known: Collection[str], foreign: Collection[str], specs: SpecDirectory, metadata: MetadataDirectory | None
) -> tuple[str, ...]:
    """Remove files of all claims but those that are known, and of dead writers; gives the claims' uids.

    Nobody starts a claim meanwhile. Specs of `foreign` claims, which another agent of this host prepared, stay.
    """
    removed = tuple(uid for uid in specs.claims() if uid not in known and uid not in foreign and specs.delete(uid))
    specs.remove_leftovers()
    if metadata is not None:
        metadata.prune(known)
    return removed


def forget_others(setups: Mapping[Kind, DeviceSetup], is_held: Callable[[str], bool], apart: Apart) -> list[str]:
    """Have set-ups undo what they did for claims that hold nothing: the ledger was lost. Gives what went wrong."""
    problems = []
    for setup in setups.values():
        if isinstance(setup, OrphanCleaner):
            try:
                apart(f"looking for what {setup.kind[1]} left", partial(setup.prune, is_held))
            except AgentError as error:
                problems.append(str(error))
    return problems
