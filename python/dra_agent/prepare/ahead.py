"""Prepares claims whose pods are not bound yet, behind the same decorators as the kubelet's requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.prepare import record as records
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.prepare.preparer import COMPLETED, Preparer


def prepared_ahead(ledger: JournalLedger) -> list[LedgerEntry]:
    """Return the claims that were prepared ahead, and that the kubelet has not requested since."""
    return [entry for entry in ledger.entries() if entry.state == COMPLETED and records.is_ahead(entry)]


class AheadPreparer:
    """A ClaimPreparer that never changes a claim that the kubelet has requested."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim, so that the kubelet's request adopts it."""
        return self._preparer.prepare_ahead(claim, deadline)

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim that was prepared ahead; does nothing if the kubelet has requested it since."""
        return self._preparer.release_if(uid, records.is_ahead, deadline)
