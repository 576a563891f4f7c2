"""The control socket with which operators start, cancel and query a reclaim: requests, client and server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from dra_agent.clock import STEADY
from dra_agent.control_socket import protocol
from dra_agent.control_socket.server import Server
from dra_agent.errors import UsageError
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.signal import ascii_line
from dra_agent.reclaim.status import status_of
from dra_agent.supervisor import on_thread

SOCKET = "reclaim.sock"
"""Its name in the state directory."""
MAX_LINE_BYTES = 64 * 1024
"""Bytes of one request."""
REQUEST_TIMEOUT_S = 10.0
"""Seconds in which the agent must respond."""


class Start(msgspec.Struct, tag_field="op", tag="start", forbid_unknown_fields=True):
    """Start a notice or hint."""

    kind: Literal["hint", "notice"] = "notice"
    seconds: float | None = None
    """Seconds from now until the node is reclaimed."""
    description: str = msgspec.field(default="", name="what")


class Cancel(msgspec.Struct, tag_field="op", tag="cancel", forbid_unknown_fields=True):
    """Cancel the operator's signal; `everything`: dismiss those of all sources."""

    everything: bool = False


class Status(msgspec.Struct, tag_field="op", tag="status", forbid_unknown_fields=True):
    """Return the status."""


class About(msgspec.Struct, tag_field="op", tag="about", forbid_unknown_fields=True):
    """Return the agent's version and configuration, for commands that show its host."""


class Exposition(msgspec.Struct, tag_field="op", tag="metrics", forbid_unknown_fields=True):
    """Return the text of /metrics, for a support bundle."""


Request = Start | Cancel | Status | About | Exposition


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def decode_request(line: bytes) -> Request:
    """Read one request; UsageError for an invalid one."""
    request = protocol.decode_request(line, _requests)
    if isinstance(request, Start) and request.seconds is not None and not 0 <= request.seconds <= 7 * 86400:
        raise UsageError(f"{request.seconds:g} seconds is not between now and a week from now")
    return request


def send_request(state_dir: Path, request: Request) -> Any:
    """Send a request to the agent of a state directory; raises its error, or RetryableError if none responds."""
    return protocol.call(state_dir / SOCKET, request, timeout=REQUEST_TIMEOUT_S)


class ReclaimControlServer(Server):
    """Starts, cancels and describes reclaims for an operator."""

    def __init__(
        self,
        path: Path,
        reclaim: ReclaimService,
        *,
        now: Callable[[], datetime] = STEADY.now,
        about: Callable[[], Any] = dict,
        metrics: Callable[[], str] = str,
    ) -> None:
        """`about` describes the agent; `metrics` returns the text of /metrics, and is called on a thread."""
        self._reclaim = reclaim
        self._now = now
        self._about = about
        self._metrics = metrics
        super().__init__(path, self._execute, line_limit=MAX_LINE_BYTES)

    async def _execute(self, line: bytes) -> Any:
        match decode_request(line):
            case Start(kind, seconds, description):
                deadline = None if seconds is None else self._now() + timedelta(seconds=seconds)
                await self._reclaim.begin(
                    kind, deadline=deadline, description=ascii_line(description) or "started by an operator"
                )
            case Cancel(everything):
                await self._reclaim.cancel(everything=everything)
            case About():
                return self._about()
            case Exposition():
                return await on_thread(self._metrics)
            case Status():
                pass
        reclaim = self._reclaim
        return status_of(
            reclaim.state, reclaim.source_health(), reclaim.progress(), self._now(), unsaved=reclaim.unsaved
        )
