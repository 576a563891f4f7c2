"""Keeps the view of a ledger up to date that agents of a rolling update share.

Without the lease an agent has the state of the ledger at the end of its last lease. The agent that acts on a reclaim
notice may serve no kubelet, and may not hold the lease for a minute; claims that the other agent prepares in this time
must be released too. So it acquires the lease at short intervals while another agent runs, and again after one has
ended: its last records may be newer than the latest lease.
"""

from __future__ import annotations

import asyncio
import logging

from dra_agent.agent.rolling_update import InstanceRegistry, Trace
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Seconds between two leases: other processes write the records."""
TIMEOUT_S = 5.0
"""Timeout of acquiring the lease."""


class SharedLedger:
    """Reads the changes of other agents at an interval while they run, from `start` to `stop`.

    Runs on the event loop, and waits on a separate thread.
    """

    def __init__(
        self,
        ledger: JournalLedger,
        instances: InstanceRegistry,
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`instances` lists the other agents that live on the state directory."""
        self._ledger = ledger
        self._instances = instances
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._executor = DaemonExecutor(1, "shared ledger", kept=1)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the records of other agents."""
        self._task = supervisor().loop("shared ledger", self._run)

    def stop(self) -> None:
        """Stop; a pending lease is given up at its deadline."""
        if self._task is not None:
            self._task.cancel()
        self._executor.shutdown()

    async def _run(self) -> None:
        failed = False
        known: tuple[list[str], frozenset[Trace]] | None = None
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                # Before the records are read, so that the end of an agent in between is a difference next time.
                running, traces = self._instances.others(), self._instances.traces()
                if running or (running, traces) != known:
                    await asyncio.get_running_loop().run_in_executor(self._executor, self._refresh)
                known = running, traces
            except RetryableError as error:
                if not failed:
                    log.warning("cannot read the ledger records of other agents", extra={"reason": str(error)})
                failed = True
            else:
                failed = False

    def _refresh(self) -> None:
        with self._ledger.lease(Deadline.of(self._timeout_s)):
            pass  # a lease starts with the records that others wrote since the last one
