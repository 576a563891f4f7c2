"""What operators ask over the trigger socket (dra_agent.control_socket carries it). Decoded strictly."""

from __future__ import annotations

from typing import Literal

import msgspec

from dra_agent.errors import UsageError

SOCKET = "reclaim.sock"
"""Its name in the state directory."""
LINE_LIMIT = 64 * 1024
"""Bytes of one request."""


class Start(msgspec.Struct, tag_field="op", tag="start", forbid_unknown_fields=True):
    """The host is about to be taken, or may be."""

    kind: Literal["hint", "notice"] = "notice"
    seconds: float | None = None
    """From now to the end."""
    what: str = ""


class Cancel(msgspec.Struct, tag_field="op", tag="cancel", forbid_unknown_fields=True):
    """It is not, or not by the operator's word; `everything`: whatever any source says."""

    everything: bool = False


class Status(msgspec.Struct, tag_field="op", tag="status", forbid_unknown_fields=True):
    """How it stands."""


class About(msgspec.Struct, tag_field="op", tag="about", forbid_unknown_fields=True):
    """Which agent answers, and with which configuration it runs: for commands that show its host."""


Request = Start | Cancel | Status | About


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def decode_request(line: bytes) -> Request:
    """Read one request; UsageError for anything that is none."""
    try:
        request = _requests.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"not a request: {error}") from error
    if isinstance(request, Start) and request.seconds is not None and not 0 <= request.seconds <= 7 * 86400:
        raise UsageError(f"{request.seconds:g} seconds is not between now and a week from now")
    return request
