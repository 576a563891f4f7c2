"""What the agent tells the cluster of claims and devices beside its slices: claim status and Events.

Nothing here is waited for by anybody, and nothing here decides anything.
"""

from __future__ import annotations

from dra_agent.status.claim_status import ClaimStatus
from dra_agent.status.device_status import Condition, HeldClaim
from dra_agent.status.device_watch import DeviceWatch
from dra_agent.status.events import Events, Reason, Subject
from dra_agent.status.telling import TellingPreparer

__all__ = ["ClaimStatus", "Condition", "DeviceWatch", "Events", "HeldClaim", "Reason", "Subject", "TellingPreparer"]
