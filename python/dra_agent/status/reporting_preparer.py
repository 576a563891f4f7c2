"""A preparer that reports: prepared devices go into the claim's status, permanent failures become Events.

It adds nothing to the way of a request but two calls that never wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.api_object import identity_of
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ledger import DeviceHeldError
from dra_agent.status.claim_status import ClaimStatusWriter
from dra_agent.status.device_status import DeviceKey, PreparedClaim
from dra_agent.status.events import DEVICE_HELD, PREPARE_FAILED, EventRecorder, ObjectReference


class ReportingPreparer:
    """Decorator of a preparer that reports results."""

    def __init__(self, preparer: ClaimPreparer, status: ClaimStatusWriter | None, events: EventRecorder | None) -> None:
        self._preparer = preparer
        self._status = status
        self._events = events

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim."""
        try:
            devices = self._preparer.prepare(claim, deadline)
        except AgentError as error:
            self._failed(claim, error)
            raise
        if self._status is not None and devices:
            self._status.prepared(_prepared_claim(claim, devices))
        return devices

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""
        done = self._preparer.unprepare(uid, deadline)
        if self._status is not None:
            self._status.released(uid)
        return done

    def _failed(self, claim: dict[str, Any], error: AgentError) -> None:
        metadata = claim.get("metadata")
        if self._events is None or not isinstance(metadata, dict):
            return
        namespace, name, uid = (metadata.get(key) for key in ("namespace", "name", "uid"))
        if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str)):
            return
        if isinstance(error, DeviceHeldError):
            self._events.record(DEVICE_HELD, ObjectReference.claim(namespace, name, uid), error.public_text)
        elif isinstance(error, PermanentError):
            self._events.record(PREPARE_FAILED, ObjectReference.claim(namespace, name, uid), error.public_text)


def _prepared_claim(claim: dict[str, Any], devices: Sequence[ClaimDevice]) -> PreparedClaim:
    keys = tuple(DeviceKey(item.pool, item.device, item.share_id) for item in devices)
    return PreparedClaim(claim["metadata"]["uid"], *identity_of(claim), keys)
