"""From an allocated claim to devices that a container can use; no crash leads to two holders of one device."""

from __future__ import annotations

from dra_agent.prepare.claim_preparer import ClaimPreparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.preparer import Preparer
from dra_agent.prepare.recovery import RecoveryReport

__all__ = ["ClaimPreparer", "JournalLedger", "Preparer", "RecoveryReport"]
