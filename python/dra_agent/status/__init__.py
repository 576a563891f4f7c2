"""What the agent tells the cluster of claims and devices beside its slices: claim status and Events.

Nothing here is waited for by anybody, and nothing here decides anything.
"""

from __future__ import annotations

from dra_agent.status.claim_status import ClaimStatusWriter
from dra_agent.status.device_events import DeviceEventEmitter
from dra_agent.status.device_status import Condition, PreparedClaim
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
