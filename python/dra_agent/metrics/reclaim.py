"""Metrics of reclaim: health of the signal sources, and the current state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.service import ReclaimService

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX = "dra_agent_reclaim"


class SourceSnapshot(msgspec.Struct, frozen=True):
    """Health of one source."""

    source: str
    up: bool
    last_success: float | None
    """Unix time."""
    failures: int


class ReclaimSnapshot(msgspec.Struct, frozen=True):
    """Values of the reclaim metrics at one time."""

    phase: str = "none"
    deadline: float | None = None
    """Unix time."""
    notices: int = 0
    cancelled: int = 0
    saved: bool = True
    """Whether a restart of the agent continues with this state."""
    notice_failures: int = 0
    """Failed writes of notice files."""
    sources: tuple[SourceSnapshot, ...] = ()
    tainted_after: float | None = None
    """Seconds from the notice until every device was tainted."""
    evictions: dict[tuple[str, str], int] = {}
    """Pods that the agent evicted early, by method and result."""
    claims: dict[str, int] = {}
    """Claims of the current notice, by state."""
    overdue: int = 0
    """Claims of the current notice that were not released at its deadline."""


def snapshot_of(reclaim: ReclaimService) -> ReclaimSnapshot:
    """Read the current values; safe from any thread."""
    state, progress = reclaim.state, reclaim.progress()
    claims = dict.fromkeys(("prepared", "refused", "unprepared", "released"), 0)
    for record in progress.claims:
        claims[record.state] += 1
    return ReclaimSnapshot(
        phase=state.phase,
        deadline=None if state.deadline is None else STEADY.to_wall(state.deadline).timestamp(),
        notices=reclaim.notices,
        cancelled=reclaim.cancelled,
        saved=not reclaim.unsaved,
        notice_failures=reclaim.notice_failures(),
        tainted_after=progress.tainted_after,
        evictions=progress.evictions,
        claims=claims if state.phase == "notice" else {},
        overdue=sum(record.overdue is not None for record in progress.claims),
        sources=tuple(
            SourceSnapshot(one.source, one.up is True, STEADY.wall_unix(one.last_success), one.failures)
            for one in reclaim.source_health()
        ),
    )


def families(snapshot: ReclaimSnapshot) -> Iterator[Metric]:
    """Yield the metrics of a snapshot."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    phase = GaugeMetricFamily(f"{_PREFIX}_phase", "1 for the current phase of the reclaim.", labels=["phase"])
    for name in ("none", "hint", "notice", "cancelled"):
        phase.add_metric([name], int(name == snapshot.phase))
    yield phase
    yield CounterMetricFamily(f"{_PREFIX}_notices", "Notices that started.", value=snapshot.notices)
    yield CounterMetricFamily(
        f"{_PREFIX}_cancelled", "Notices that ended before the node was terminated.", value=snapshot.cancelled
    )
    yield GaugeMetricFamily(
        f"{_PREFIX}_state_saved",
        "0 while the state of the reclaim is not on disk: a restart of the agent would lose it.",
        value=int(snapshot.saved),
    )
    yield CounterMetricFamily(
        f"{_PREFIX}_notice_files_failed",
        "Writes of notice files of containers that failed or did not end in time.",
        value=snapshot.notice_failures,
    )
    if snapshot.deadline is not None:
        yield GaugeMetricFamily(
            f"{_PREFIX}_deadline_timestamp_seconds", "When the node is reclaimed.", value=snapshot.deadline
        )
    if snapshot.tainted_after is not None:
        yield GaugeMetricFamily(
            f"{_PREFIX}_taint_publish_duration_seconds",
            "From the notice until every device was tainted.",
            value=snapshot.tainted_after,
        )
    moved = CounterMetricFamily(
        f"{_PREFIX}_fallback_evictions", "Pods that the agent evicted early.", labels=["mode", "result"]
    )
    none = {(mode, result): 0 for mode in ("evict", "delete") for result in ("ok", "budget", "error")}
    for (mode, result), count in {**none, **snapshot.evictions}.items():
        moved.add_metric([mode, result], count)
    yield moved
    if snapshot.claims:
        claims = GaugeMetricFamily(f"{_PREFIX}_claims", "Claims of the current notice.", labels=["state"])
        for name, count in snapshot.claims.items():
            claims.add_metric([name], count)
        yield claims
        yield GaugeMetricFamily(
            f"{_PREFIX}_claims_overdue",
            "Claims of the current notice that were not released at its deadline.",
            value=snapshot.overdue,
        )
    up = GaugeMetricFamily(f"{_PREFIX}_source_up", "1 while the source is reachable.", labels=["source"])
    last = GaugeMetricFamily(
        f"{_PREFIX}_last_poll_timestamp_seconds", "Time of the last successful poll of the source.", labels=["source"]
    )
    failures = CounterMetricFamily(f"{_PREFIX}_source_failures", "Failed polls of the source.", labels=["source"])
    for one in snapshot.sources:
        up.add_metric([one.source], int(one.up))
        failures.add_metric([one.source], one.failures)
        if one.last_success is not None:
            last.add_metric([one.source], one.last_success)
    yield up
    yield last
    yield failures
