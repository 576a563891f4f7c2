"""Composition of claim status and Events in Kubernetes mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.agent.config import Config
from dra_agent.agent.device_state import DeviceState
from dra_agent.errors import AgentError, PermanentError
from dra_agent.host import Host
from dra_agent.inventory.addresses import addresses
from dra_agent.kube_client.client import ApiClient
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.publish.errors import PartiallyAcceptedError
from dra_agent.status import (
    ClaimStatusWriter,
    DeviceEventEmitter,
    EventRecorder,
    ObjectReference,
)
from dra_agent.status.device_status import prepared_claims
from dra_agent.status.events import FIELDS_DROPPED, SLICES_REFUSED

if TYPE_CHECKING:
    from dra_agent.metrics.api_server import ReportingMetrics


class StatusReporter:
    """Reports from `start` to `stop`, in the background."""

    def __init__(self, config: Config, api: ApiClient) -> None:
        self._config = config
        self._api = api
        self.events = EventRecorder(api, config.driver_name, config.node)
        self._status: ClaimStatusWriter | None = None
        self._watch: DeviceEventEmitter | None = None

    def start(self, device_state: DeviceState, ledger: JournalLedger) -> None:
        """Start with the current claims and devices."""
        self.events.start()

        self._watch = DeviceEventEmitter(self._config.node, self.events, device_state, ledger)
        self._watch.changed()
        if self._config.claim_status_families != frozenset():
            self._status = ClaimStatusWriter(
                self._api,
                self._config.driver_name,
                device_state,
                addresses=_addresses_of(device_state.host),
                families=self._config.claim_status_families,
            )
            self._status.start(prepared_claims(ledger.entries()))

    def metrics(self) -> ReportingMetrics:
        """Return the state of the reporting."""
        from dra_agent.metrics.api_server import ReportingMetrics

        return ReportingMetrics(self._status, self.events)

    @property
    def status(self) -> ClaimStatusWriter | None:
        """Writer of claim status; None if it is off, and before `start`."""
        return self._status

    def devices_changed(self) -> None:
        """Notify the reporter that devices or their health changed."""
        if self._watch is not None:
            self._watch.changed()
        if self._status is not None:
            self._status.changed()

    def not_published(self, error: AgentError) -> None:
        """Report a permanent error of publishing."""
        node = ObjectReference.node(self._config.node)
        if isinstance(error, PartiallyAcceptedError):
            self.events.record(FIELDS_DROPPED, node, str(error))
        elif isinstance(error, PermanentError):
            self.events.record(SLICES_REFUSED, node, str(error))

    async def stop(self) -> None:
        """Stop; pending reports are sent after the next start."""
        if self._status is not None:
            await self._status.stop()
        await self.events.stop()


def _addresses_of(host: Host) -> Callable[[str, str], Sequence[str]]:
    """Only interfaces of this host's network namespace can be read, not those of a simulated host."""
    if host.sysfs != Path("/sys") or host.net is not None:
        return lambda interface, hardware_address: ()

    def read(interface: str, hardware_address: str) -> Sequence[str]:
        try:
            return addresses(interface, hardware_address)
        except OSError:  # the condition of the device is reported without them
            return ()

    return read
