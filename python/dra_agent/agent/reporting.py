"""What Kubernetes mode tells the cluster of claims and devices: claim status and Events, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dra_agent.agent.config import Config
from dra_agent.agent.hardware import Hardware
from dra_agent.agent.reporting_metrics import ReportingMetrics
from dra_agent.cluster.server import ApiServer
from dra_agent.errors import AgentError, PermanentError
from dra_agent.host import Host
from dra_agent.inventory.addresses import addresses
from dra_agent.prepare.ports import Ledger
from dra_agent.publish.errors import NotTakenError
from dra_agent.status import ClaimStatus, DeviceWatch, Events, HeldClaim, Subject, TellingPreparer
from dra_agent.status.events import FIELDS_DROPPED, SLICES_REFUSED
from dra_agent.status.telling import Preparing, held_claims


class Reporting:
    """Tells from `start` to `stop`; nothing waits for it."""

    def __init__(self, config: Config, api: ApiServer) -> None:
        self._config = config
        self._api = api
        self.events = Events(api, config.driver_name, config.node)
        self._status: ClaimStatus | None = None
        self._watch: DeviceWatch | None = None

    def start(self, hardware: Hardware, ledger: Ledger) -> None:
        """Begin with the claims and devices that are there."""
        self.events.start()

        def held() -> list[HeldClaim]:
            return held_claims(ledger.entries())

        self._watch = DeviceWatch(self._config.node, self.events, lambda: hardware.inventory, held)
        self._watch.changed()
        if self._config.claim_status_families != frozenset():
            self._status = ClaimStatus(
                self._api,
                self._config.driver_name,
                hardware.lookup,
                addresses=_addresses_of(hardware.host),
                families=self._config.claim_status_families,
            )
            self._status.start(held())

    def metrics(self) -> ReportingMetrics:
        """Give what says how the telling goes."""
        return ReportingMetrics(self._status, self.events)

    def telling(self, preparer: Preparing) -> TellingPreparer:
        """Have told what a preparer does."""
        return TellingPreparer(preparer, self._status, self.events)

    def devices_changed(self) -> None:
        """Take note that devices, or their health, have changed."""
        if self._watch is not None:
            self._watch.changed()
        if self._status is not None:
            self._status.changed()

    def not_published(self, error: AgentError) -> None:
        """Tell of what keeps slices from being published until somebody changes something."""
        node = Subject.node(self._config.node)
        if isinstance(error, NotTakenError):
            self.events.record(FIELDS_DROPPED, node, str(error))
        elif isinstance(error, PermanentError):
            self.events.record(SLICES_REFUSED, node, str(error))

    async def stop(self) -> None:
        """Stop; what was not told is told after the next start."""
        if self._status is not None:
            await self._status.stop()
        await self.events.stop()


def _addresses_of(host: Host) -> Callable[[str, str], Sequence[str]]:
    """Only this machine's own interfaces can be asked for: not a simulated host's, nor those of another namespace."""
    if host.sysfs != Path("/sys") or host.net is not None:
        return lambda interface, hardware_address: ()
    return addresses
