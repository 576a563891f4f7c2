"""Status of a reclaim: of each claim, and as the command line shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.signal_tracker import SourceHealth
from dra_agent.reclaim.state import Phase, ReclaimState


class ClaimReleaseStatus(msgspec.Struct):
    """The progress of one claim."""

    uid: str
    namespace: str
    name: str
    seen: datetime
    pods: tuple[str, ...] = ()
    """The pods for which it is still reserved."""
    tainted: datetime | None = None
    """When it was held by devices that were all tainted."""
    pods_gone: datetime | None = None
    """When it was reserved for no pod any more."""
    unprepared: datetime | None = None
    refused: datetime | None = None
    """When its prepare was refused: it is allocated here, and nothing of it is used."""
    released: datetime | None = None
    overdue: datetime | None = None
    """When the deadline passed and it was not released."""
    unknown: str = ""
    """Why the last request to the API server failed; without Kubernetes, the result of its hook."""
    blocked_reason: str = ""
    """The reason why a pod of it remains, although the agent would evict it."""
    requested_at: float = float("-inf")
    """Time of the last request, in the loop's time."""

    @property
    def state(self) -> str:
        """prepared, unprepared, refused (both still allocated here), or released."""
        if self.released is not None:
            return "released"
        if self.refused is not None:
            return "refused"
        return "prepared" if self.unprepared is None else "unprepared"

    @property
    def is_unprepared(self) -> bool:
        """Whether nothing of it is used on this host."""
        return self.unprepared is not None or self.refused is not None


class Progress(msgspec.Struct, frozen=True):
    """Progress of the release of a host's claims."""

    tainted_after: float | None = None
    """Seconds from the notice to the last slice; None while some are not tainted, or none is to be."""
    claims: tuple[ClaimReleaseStatus, ...] = ()
    evictions: dict[tuple[str, str], int] = {}
    """Pods that the agent evicted early, by method and result, since it started."""
    complete: bool = False
    """Whether all steps of the notice are complete."""


class SourceStatus(msgspec.Struct, frozen=True):
    """Health of one source."""

    source: str
    up: bool | None
    seconds_since_success: float | None = msgspec.field(name="seconds_since_good")
    failures: int
    why: str


class EventStatus(msgspec.Struct, frozen=True):
    """One signal of a source."""

    source: str
    kind: str
    event: str
    description: str = msgspec.field(name="what")
    deadline: datetime | None
    since: datetime
    deadline_note: str = msgspec.field(name="doubt")
    silent_since: datetime | None
    """The source no longer reports it, and cannot withdraw it."""


class ClaimStatus(msgspec.Struct, frozen=True):
    """The progress of one claim of a notice."""

    namespace: str
    name: str
    uid: str
    state: str
    """prepared, unprepared, refused (never prepared; both still allocated here), or released."""
    seconds: float | None
    """From the notice to the release."""
    tainted: float | None
    pods_gone: float | None
    unprepared: float | None
    """From the notice, too: until its devices were tainted, no pod had it reserved, the kubelet released it."""
    overdue: bool
    """Whether it was not released at the deadline."""
    pods: tuple[str, ...]
    """Pods for which it is still reserved."""
    why: str
    """Why the state is unknown, or the error of its hook."""


class ReclaimStatus(msgspec.Struct, frozen=True):
    """Status of the reclaim of a host."""

    phase: Phase
    noticed: datetime | None
    deadline: datetime | None
    seconds_left: float | None
    tainted_after: float | None
    """Seconds from the notice until every device was tainted."""
    complete: bool
    """Whether every claim of the notice is released, and every device kept from new ones."""
    claims: tuple[ClaimStatus, ...]
    events: tuple[EventStatus, ...]
    sources: tuple[SourceStatus, ...]
    unsaved: str = ""
    """Why a restart of the agent would lose the last change; empty if it is on disk."""


class SourceNote(msgspec.Struct, frozen=True):
    """What is missing from the sources of a host."""

    is_blind: bool
    """No source is reachable, so no notice of them is seen."""
    message: str

    def __str__(self) -> str:
        return self.message


def source_note(sources: Sequence[Mapping[str, Any]]) -> SourceNote | None:
    """Return what is missing from the sources of a status; None if each is reachable, or will be polled soon."""
    if not sources:
        return SourceNote(False, "no source of notices is watched: only `dra-agent reclaim start` starts a reclaim")
    down = [f"{one['source']} ({one['why'] or 'no reason'})" for one in sources if one["up"] is False]
    if not down:
        return None
    if len(down) == len(sources):
        return SourceNote(True, f"no source of notices is reachable, so no notice is seen: {', '.join(down)}")
    return SourceNote(False, f"{len(down)} of {len(sources)} sources of notices cannot be reached: {', '.join(down)}")


def status_of(
    state: ReclaimState, source_health: list[SourceHealth], progress: Progress, now: datetime, *, unsaved: str = ""
) -> ReclaimStatus:
    """Build the status as of `now`."""
    return ReclaimStatus(
        phase=state.phase,
        noticed=_wall(state.noticed),
        deadline=_wall(state.deadline),
        seconds_left=None if state.deadline is None else round((state.deadline - now).total_seconds(), 1),
        tainted_after=progress.tainted_after,
        complete=progress.complete,
        claims=tuple(_claim(record, state.noticed) for record in progress.claims),
        events=tuple(
            EventStatus(
                source=active.signal.source,
                kind=active.signal.kind,
                event=active.signal.event,
                description=active.signal.description,
                deadline=_wall(active.signal.deadline),
                since=STEADY.to_wall(active.since),
                deadline_note=active.signal.deadline_note,
                silent_since=_wall(active.silent_since),
            )
            for active in state.active
        ),
        sources=tuple(
            SourceStatus(
                source=one.source,
                up=one.up,
                seconds_since_success=None
                if one.last_success is None
                else round(max(0.0, now.timestamp() - one.last_success), 1),
                failures=one.failures,
                why=one.why,
            )
            for one in source_health
        ),
        unsaved=unsaved,
    )


def _wall(moment: datetime | None) -> datetime | None:
    return None if moment is None else STEADY.to_wall(moment)


def _claim(record: ClaimReleaseStatus, noticed: datetime | None) -> ClaimStatus:
    def since(moment: datetime | None) -> float | None:
        if moment is None or noticed is None:
            return None
        return round(max(0.0, (moment - noticed).total_seconds()), 2)

    return ClaimStatus(
        namespace=record.namespace,
        name=record.name,
        uid=record.uid,
        state=record.state,
        seconds=since(record.released),
        tainted=since(record.tainted),
        pods_gone=since(record.pods_gone),
        unprepared=since(record.unprepared),
        overdue=record.overdue is not None,
        pods=record.pods,
        why=record.unknown or ("" if record.unprepared else record.blocked_reason),
    )
