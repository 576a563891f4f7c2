"""W3C Trace Context: the trace that a caller's request belongs to (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_STATE_CHARS = 512
"""Of a tracestate that is passed on; a longer one is dropped (section 3.3.1.5)."""
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e\t]*")
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class RemoteParent:
    """The span of the caller."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool
    """Whether the caller records its span. If not, the agent records none of this trace either."""
    state: str


def parse(traceparent: str, tracestate: str = "") -> RemoteParent | None:
    """Return the caller's span; None for a header that is not valid, which starts a new trace."""
    match = _PARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    valid = len(tracestate) <= MAX_STATE_CHARS and _STATE.fullmatch(tracestate)
    state = tracestate.strip() if valid else ""
    return RemoteParent(bytes.fromhex(trace_id), bytes.fromhex(span_id), bool(int(flags, 16) & _SAMPLED), state)
