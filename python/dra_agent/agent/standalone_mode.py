"""The composition of standalone mode: the agent keeps, allocates and prepares claims by itself."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from dra_agent.agent.config import Config
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.reclaim_standalone import StandaloneDrain
from dra_agent.agent.validation import validation_messages
from dra_agent.conflicts import delete
from dra_agent.health.prepared import unusable_reason
from dra_agent.metrics.instrumented import InstrumentedPreparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.service import ReclaimService
from dra_agent.standalone.service import StandaloneService

log = logging.getLogger(__name__)


class StandaloneMode:
    """See dra_agent.agent.mode.Mode."""

    status = ""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._service: StandaloneService | None = None
        self._reclaim: ReclaimService | None = None
        self._leaving: StandaloneDrain | None = None

    async def open(self) -> None:
        """Nothing can be answered before the devices are known."""

    def attach_reclaim(self, reclaim: ReclaimService) -> None:
        """Take note of it; acting on it begins with `serve`."""
        self._reclaim = reclaim

    async def serve(self, preparer: InstrumentedPreparer, hardware: DeviceState, ledger: JournalLedger) -> None:
        """Bring back what the ledger knows and the store has lost, then listen."""
        config = self._config
        delete(config.state_dir)
        self._service = StandaloneService(
            config.state_dir,
            node=config.node,
            driver=config.driver_name,
            slices=hardware.slices,
            preparer=preparer,
            allocate=_allocate,
            validate=validation_messages,
            unusable=lambda pool, device: unusable_reason(hardware.lookup(pool, device)),
        )
        # What was only begun for a claim that the store has lost is undone by the first repair.
        entries = [msgspec.to_builtins(entry) for entry in ledger.entries() if entry.state != "started"]
        for name in self._service.queue.restore(entries, config.driver_name):
            log.warning("claim restored from the ledger: the store had lost it", extra={"claim": name})
        assert self._reclaim is not None
        self._leaving = StandaloneDrain(config, self._reclaim, self._service)
        await self._leaving.prepare()
        await self._service.start()
        self._leaving.start()

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
        """What a stop did not wait for; what hangs in the preparer is also watched over there."""
        return self._service.hung_calls if self._service is not None else []

    @property
    def draining(self) -> bool:
        """Whether claims have still to be released."""
        return self._leaving is not None and self._leaving.busy

    async def close(self) -> None:
        """Stop listening."""
        if self._leaving is not None:
            await self._leaving.stop()
        if self._service is not None:
            await self._service.stop()


def _allocate(**question: Any) -> Any:
    from dra_agent.allocator import allocate  # megabytes that only the first claim needs

    return allocate(**question)
