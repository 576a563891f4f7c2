"""A preparer that tells: what it prepared goes into the claim's status, what failed for good becomes an Event.

It adds nothing to the way of a request but two calls that never wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError
from dra_agent.prepare import PreparedDevice
from dra_agent.prepare.ports import DeviceHeldError, Entry
from dra_agent.status.device_status import DeviceKey, HeldClaim
from dra_agent.status.events import DEVICE_HELD, PREPARE_FAILED, Reason, Subject


class Preparing(Protocol):
    """Who does the work; see dra_agent.prepare.Preparer."""

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[PreparedDevice]:
        """Prepare a claim."""
        ...

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""
        ...


class Status(Protocol):
    """Who tells of held claims; see ClaimStatus."""

    def prepared(self, claim: HeldClaim) -> None:
        """Take note of a claim."""
        ...

    def released(self, uid: str) -> None:
        """Forget a claim."""
        ...


class Recorder(Protocol):
    """Who writes Events; see Events."""

    def record(self, reason: Reason, subject: Subject, note: str) -> None:
        """Take note of something."""
        ...


class TellingPreparer:
    """Prepares as another does, and tells of it."""

    def __init__(self, preparer: Preparing, status: Status | None, events: Recorder | None) -> None:
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
            self._events.record(DEVICE_HELD, Subject.claim(namespace, name, uid), str(error))
        elif isinstance(error, PermanentError):
            self._events.record(PREPARE_FAILED, Subject.claim(namespace, name, uid), str(error))


def held_claims(entries: Iterable[Entry]) -> list[HeldClaim]:
    """Name the claims that a ledger has as prepared, for what is to be told of them after a restart."""
    return [
        HeldClaim(
            entry.uid,
            entry.namespace,
            entry.name,
            tuple(DeviceKey(held.pool, held.device, held.share_id) for held in entry.devices if held.request),
        )
        for entry in entries
        if entry.state == "completed"
    ]


def _held(claim: dict[str, Any], devices: Sequence[PreparedDevice]) -> HeldClaim:
    metadata = claim["metadata"]
    keys = tuple(DeviceKey(item.pool, item.device, item.share_id) for item in devices)
    return HeldClaim(metadata["uid"], metadata.get("namespace", "default"), metadata["name"], keys)
