"""Claim status and Events: the agent's reports to the cluster besides slices.

Nothing waits for this package, and it makes no decisions.
"""

from __future__ import annotations

from dra_agent.status.claim_status import ClaimStatusWriter
from dra_agent.status.device_status import Condition, DeviceEventEmitter, PreparedClaim
from dra_agent.status.events import EventRecorder, ObjectReference, Reason
from dra_agent.status.reporting_preparer import ReportingPreparer

__all__ = [
    "ClaimStatusWriter",
    "Condition",
    "DeviceEventEmitter",
    "EventRecorder",
    "PreparedClaim",
    "Reason",
    "ObjectReference",
    "ReportingPreparer",
]
