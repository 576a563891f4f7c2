"""A preparer that tells: what it prepared goes into the claim's status, what failed for good becomes an Event.

It adds nothing to the way of a request but two calls that never wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError
from dra_agent.prepare import PreparedDevice
from dra_agent.prepare.ledger_types import DeviceHeldError, LedgerEntry
from dra_agent.status.device_status import DeviceKey, PreparedClaim
from dra_agent.status.events import DEVICE_HELD, PREPARE_FAILED, ObjectReference, Reason


class Preparing(Protocol):
    """Who does the work; see dra_agent.prepare.Preparer."""

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[PreparedDevice]:
        """Prepare a claim."""
        ...

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""
        ...


class StatusSink(Protocol):
    """Who tells of held claims; see ClaimStatus."""

    def prepared(self, claim: PreparedClaim) -> None:
        """Take note of a claim."""
        ...

    def released(self, uid: str) -> None:
        """Forget a claim."""
        ...


class EventSink(Protocol):
    """Who writes Events; see Events."""

    def record(self, reason: Reason, subject: ObjectReference, note: str) -> None:
        """Take note of something."""
        ...


class ReportingPreparer:
    """Prepares as another does, and tells of it."""

    def __init__(self, preparer: Preparing, status: StatusSink | None, events: EventSink | None) -> None:
        self._preparer = preparer
        self._status = status
        self._events = events

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[PreparedDevice]:
        """Prepare a claim."""
        try:
            devices = self._preparer.prepare(claim, deadline)
        except AgentError as error:
            self._failed(claim, error)
            raise
        if self._status is not None and devices:
            self._status.prepared(_held(claim, devices))
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
            self._events.record(DEVICE_HELD, ObjectReference.claim(namespace, name, uid), str(error))
        elif isinstance(error, PermanentError):
            self._events.record(PREPARE_FAILED, ObjectReference.claim(namespace, name, uid), str(error))


def held_claims(entries: Iterable[LedgerEntry]) -> list[PreparedClaim]:
    """Name the claims that a ledger has as prepared, for what is to be told of them after a restart."""
    return [
        PreparedClaim(
            entry.uid,
            entry.namespace,
            entry.name,
            tuple(DeviceKey(held.pool, held.device, held.share_id) for held in entry.devices if held.request),
        )
        for entry in entries
        if entry.state == "completed"
    ]


def _held(claim: dict[str, Any], devices: Sequence[PreparedDevice]) -> PreparedClaim:
    metadata = claim["metadata"]
    keys = tuple(DeviceKey(item.pool, item.device, item.share_id) for item in devices)
    return PreparedClaim(metadata["uid"], metadata.get("namespace", "default"), metadata["name"], keys)
