"""Background work while claims are served: repairs claims, compacts the ledger's journal, frees memory.

It has its own threads. A repair that hangs blocks one thread, but not other claims, the
scan of the hardware, or the agent's shutdown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dra_agent.agent.liveness import LivenessMonitor, MonitoredThread
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import AgentError
from dra_agent.malloc import trim
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.recovery import ExecutorRunner
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
"""Seconds between two rounds."""
ROUND_TIMEOUT_S = 3600.0
"""Maximum seconds of a round of repairs: each of up to a hundred claims can cost its own timeout."""
MAX_HUNG_REPAIRS = 256
"""Maximum repairs that may hang at the same time; each keeps its locks, so no round retries it."""


class Housekeeping:
    """Repairs claims from `start`, first those of earlier agents, to `stop`."""

    def __init__(
        self,
        ledger: JournalLedger,
        preparer: Preparer,
        liveness: LivenessMonitor,
        *,
        is_newest: Callable[[], bool],
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`is_newest`: of several agents only the newest repairs; two versions may write one spec differently."""
        self._ledger = ledger
        self._preparer = preparer
        self._is_newest = is_newest
        self._interval_s = interval_s
        self._thread = MonitoredThread("housekeeping", liveness)
        self._repairs = DaemonExecutor(MAX_HUNG_REPAIRS, "repair")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start with the claims of earlier agents."""
        self._task = supervisor().loop("housekeeping", self._run)

    def stop(self) -> None:
        """Stop without waiting for calls that hang."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown()
        self._repairs.shutdown()

    async def _run(self) -> None:
        run_call = ExecutorRunner(self._repairs)
        await self._guarded("check claims of an earlier run", lambda: self._preparer.recovery.recover(run_call))
        while True:
            await asyncio.sleep(self._interval_s)
            await self._guarded("compact the ledger", self._ledger.compact)
            await self._guarded(
                "check CDI specs", lambda: self._is_newest() and self._preparer.recovery.repair(run_call)
            )
            await self._guarded("free memory", trim)

    async def _guarded(self, operation: str, call: Callable[[], object]) -> None:
        try:
            await self._thread.run(operation, ROUND_TIMEOUT_S, call)
        except AgentError as error:
            log.warning(
                "background work failed; it is retried in the next round",
                extra={"what": operation, "reason": str(error)},
            )
        except Exception:  # housekeeping that fails must not end housekeeping
            log.exception("background work failed; it is retried in the next round", extra={"what": operation})
