"""The interface of the agent's two modes: with Kubernetes, and standalone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dra_agent.agent.device_state import DeviceState
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.signal import SignalSource


class Mode(Protocol):
    """A mode of operation: KubernetesMode or StandaloneMode. All methods are called on the event loop."""

    async def open(self) -> None:
        """Start the parts that need no devices; raises AgentError if the agent cannot start."""

    def signal_sources(self, settings: ReclaimSettings) -> Sequence[SignalSource]:
        """Return the sources of reclaim signals outside the host; called after `open`."""

    def attach_reclaim(self, reclaim: ReclaimService) -> None:
        """Act on saved and current reclaim notices; called before `serve`."""

    async def serve(self, preparer: Preparer, device_state: DeviceState, ledger: JournalLedger) -> None:
        """Start to serve claims."""

    def devices_changed(self) -> None:
        """Notify the mode that devices were added, removed or changed."""

    @property
    def status(self) -> str:
        """Status in one line; may be empty."""

    @property
    def failures(self) -> list[str]:
        """Why claims cannot be served at present."""

    @property
    def hung_calls(self) -> list[str]:
        """Calls that are pending on a thread and may never return."""

    @property
    def draining(self) -> bool:
        """True while the node is being reclaimed and claims must be released through this agent."""

    async def close(self) -> None:
        """Stop; prepared claims stay prepared. Also called if `open` or `serve` failed."""
