"""What people are told of a reclaim, in one sentence each: in the log and in Events of the Node. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dra_agent.clock import STEADY
from dra_agent.reclaim.release_status import ClaimReleaseStatus
from dra_agent.reclaim.state import ReclaimState


def announced(state: ReclaimState) -> str:
    """Say that the host is taken, or may be, when, and who says so."""
    cause = state.cause
    text = "" if cause is None else f"{cause.source}: {cause.what}"
    if state.phase != "notice":
        return f"the host may be taken ({text}); no new claims are allocated here"
    when = "" if state.deadline is None else f" at {STEADY.to_wall(state.deadline).isoformat(timespec='seconds')}"
    return f"the host is taken{when} ({text}); claims are being released"


def taken_back(refused: int) -> str:
    """Say that nothing holds any more, and when those get their turn whose claims were refused meanwhile."""
    text = "what was announced does not hold any more; devices can be claimed again"
    if not refused:
        return text
    # kubelet 1.37: a pod's worker comes back at its resync, 60 s and up to half of that more; only a change of the pod
    # makes it quicker, which is not this agent's to make.
    claims = "1 claim was" if refused == 1 else f"{refused} claims were"
    return f"{text}; {claims} refused meanwhile: the kubelet asks again within 90 s, for a new pod at once"


def summary(records: Iterable[ClaimReleaseStatus], noticed: datetime | None) -> str:
    """Say how many claims were released, how long it took, and who keeps the others."""
    records = list(records)
    done = [record.released for record in records if record.released is not None]
    text = f"{len(done)} of {len(records)} claims released"
    if noticed is not None and done:
        text += f", the last {(max(done) - noticed).total_seconds():.1f} s after the notice"
    kept = [_kept(record) for record in records if record.released is None]
    return text + (f"; not released: {', '.join(kept)}" if kept else "")


def _kept(record: ClaimReleaseStatus) -> str:
    by = (
        f" (reserved for {', '.join(record.pods)})" if record.pods else f" ({record.unknown})" if record.unknown else ""
    )
    return f"{record.namespace}/{record.name}{by}"
