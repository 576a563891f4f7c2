"""The parts of an agent that other parts read; each is None until the start has reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_agent.agent.device_state import DeviceState
    from dra_agent.agent.mode import Mode
    from dra_agent.cdi.directory import SpecDirectory
    from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
    from dra_agent.reclaim.runtime import ReclaimRuntime


@dataclass
class Parts:
    """Set by `Agent` during its start, in this order."""

    mode: Mode | None = None
    reclaim: ReclaimRuntime | None = None
    ledger: JournalLedger | None = None
    device_state: DeviceState | None = None
    specs: SpecDirectory | None = None

    def prepared(self) -> list[LedgerEntry]:
        """Return the claims that are prepared."""
        entries = [] if self.ledger is None else self.ledger.entries()
        return [entry for entry in entries if entry.state == "completed"]
