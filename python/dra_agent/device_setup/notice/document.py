"""The document that containers read: the phase of the reclaim of their host, and what they may do.

It is the same for every claim of the host, and holds nothing else about the host or its claims.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from dra_agent.json_decode import decode_json

FILE = "notice.json"
"""Its name in the directory of a claim."""
KIND = "ReclaimNotice"
MAX_BYTES = 64 * 1024
SAME_TIME = timedelta(seconds=1)
"""Times that differ by less are equal: after a step of the wall clock, each conversion is off by microseconds."""

Phase = Literal["none", "hint", "notice", "cancelled"]
Advice = Literal["checkpoint", "drain", "exit", "continue"]
ADVICE: dict[Phase, tuple[Advice, ...]] = {
    "none": (),
    "hint": ("checkpoint",),
    "notice": ("checkpoint", "drain", "exit"),
    "cancelled": ("continue",),
}
"""What a program may do now without loss: nothing else follows from a phase."""


# Not strict: `sequence` continues after a downgrade, although the file has fields of the newer agent.
class ReclaimNotice(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Whether the host of this container is being reclaimed. Times are UTC of the host's clock."""

    api_version: Literal["dra-agent.internal/v1"]
    kind: Literal["ReclaimNotice"]
    sequence: int
    """Number of this content, from 1: higher after every change."""
    phase: Phase
    """none; hint: the host may be reclaimed; notice: it will be; cancelled: it was to be, and is not any more."""
    advice: tuple[Advice, ...]
    """What a program may do now: checkpoint, drain (accept no new work and finish the current), exit, continue."""
    observed_at: datetime | None = None
    """When the phase began on this host; absent in phase none."""
    deadline: datetime | None = None
    """When the host is reclaimed, if that is known."""
    source: str = ""
    """Name of the signal, such as `aws.spot`, `azure` or `operator`; absent without a hint or notice."""


def notice(
    phase: Phase, *, observed_at: datetime | None = None, deadline: datetime | None = None, source: str = ""
) -> ReclaimNotice:
    """Return a document with sequence 0, which no file has. `deadline` is rounded down to a second."""
    return ReclaimNotice(
        "dra-agent.internal/v1",
        "ReclaimNotice",
        0,
        phase,
        ADVICE[phase],
        observed_at=None if observed_at is None else _in_utc(observed_at, 1000),
        deadline=None if deadline is None else _in_utc(deadline, 1_000_000),
        source=source,
    )


NONE = notice("none")


def successor(previous: ReclaimNotice | None, current: ReclaimNotice) -> ReclaimNotice:
    """Return the content that replaces `previous` (None: there is no file); the same object if nothing changes.

    A container that was never notified sees no cancellation.
    """
    if current.phase == "cancelled" and (previous is None or previous.phase == "none"):
        current = NONE
    if previous is None:
        return msgspec.structs.replace(current, sequence=1)
    if _is_same(previous, current):
        return previous
    return msgspec.structs.replace(current, sequence=previous.sequence + 1)


def encode(document: ReclaimNotice) -> bytes:
    """Return the content of the file."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decode(data: bytes) -> ReclaimNotice | None:
    """Return the document of a file; None if this agent cannot read it."""
    try:
        return decode_json(data, type=ReclaimNotice)
    except msgspec.DecodeError:
        return None


def schema() -> dict[str, Any]:
    """Return the JSON schema of the file; deterministic. Readers accept unknown fields: later versions may add some."""
    found = msgspec.json.schema(ReclaimNotice)["$defs"][KIND]
    properties = found["properties"]
    properties["sequence"]["minimum"] = 1
    for name in ("observedAt", "deadline"):  # absent instead of null
        properties[name] = {"type": "string", "format": "date-time"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": KIND}


def _is_same(one: ReclaimNotice, other: ReclaimNotice) -> bool:
    def without_times(document: ReclaimNotice) -> ReclaimNotice:
        return msgspec.structs.replace(document, sequence=0, observed_at=None, deadline=None)

    return (
        without_times(one) == without_times(other)
        and _is_same_time(one.observed_at, other.observed_at)
        and _is_same_time(one.deadline, other.deadline)
    )


def _is_same_time(one: datetime | None, other: datetime | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= SAME_TIME


def _in_utc(time: datetime, microseconds: int) -> datetime:
    time = time.astimezone(UTC)
    return time.replace(microsecond=time.microsecond // microseconds * microseconds)
