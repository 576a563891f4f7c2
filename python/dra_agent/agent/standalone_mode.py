"""Composition of standalone mode: the agent stores, allocates and prepares claims."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from dra_agent.agent import preparer_stack
from dra_agent.agent.config import Config
from dra_agent.agent.config_file import validation_messages
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.liveness import LivenessMonitor
from dra_agent.agent.reload import Reload
from dra_agent.conflicts import delete_conflicts
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.signal import SignalSource
from dra_agent.reclaim.standalone import StandaloneDrain
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.service import StandaloneService

if TYPE_CHECKING:
    from dra_agent.metrics.registry import Metrics

log = logging.getLogger(__name__)


class StandaloneMode:
    """See dra_agent.agent.mode.Mode."""

    status = ""

    def __init__(
        self,
        config: Config,
        liveness: LivenessMonitor,
        metrics: Metrics | None,
        reload: Reload,
        on_drain_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`reload` has the configuration in effect. `on_drain_change` is called when `draining` may have changed."""
        self._config = config
        self._liveness = liveness
        self._metrics = metrics
        self._reload = reload
        self._on_drain_change = on_drain_change
        self._service: StandaloneService | None = None
        self._reclaim: ReclaimService | None = None
        self._drain: StandaloneDrain | None = None

    async def open(self) -> None:
        """Nothing to start before the devices are known."""

    def signal_sources(self, settings: ReclaimSettings) -> Sequence[SignalSource]:
        """Return none: all sources are those of the host."""
        return ()

    def attach_reclaim(self, reclaim: ReclaimService) -> None:
        """Attach it; `serve` starts to act on it."""
        self._reclaim = reclaim

    async def serve(self, preparer: ClaimPreparer, device_state: DeviceState, ledger: JournalLedger) -> None:
        """Restore claims that are in the ledger but missing in the store, then listen."""
        config = self._config
        delete_conflicts(config.state_dir)
        self._service = StandaloneService(
            config.state_dir,
            node=config.node,
            driver=config.driver_name,
            devices=device_state,
            preparer=preparer_stack.standalone(preparer, self._liveness, self._metrics),
            allocator=ClusterAllocator(),
            validate=validation_messages,
        )
        # An incomplete prepare of a claim that the store has lost is rolled back by the first repair.
        entries = [msgspec.to_builtins(entry) for entry in ledger.entries() if entry.state != "started"]
        for name in self._service.queue.restore(entries, config.driver_name):
            log.warning("claim restored from the ledger: the store had lost it", extra={"claim": name})
        assert self._reclaim is not None
        self._drain = StandaloneDrain(
            lambda: self._reload.effective.reclaim, self._reclaim, self._service, self._on_drain_change
        )
        await self._drain.prepare()
        await self._service.start()
        self._drain.start()

    def devices_changed(self) -> None:
        """Have waiting claims tried again."""
        if self._service is not None:
            self._service.devices_changed()

    @property
    def failures(self) -> list[str]:
        """It serves whenever it runs."""
        return []

    @property
    def hung_calls(self) -> list[str]:
        """Calls that a stop did not wait for; the preparer also monitors its own."""
        return self._service.hung_calls if self._service is not None else []

    @property
    def draining(self) -> bool:
        """True while claims have to be released."""
        return self._drain is not None and self._drain.draining

    async def close(self) -> None:
        """Stop listening."""
        if self._drain is not None:
            await self._drain.stop()
        if self._service is not None:
            await self._service.stop()
