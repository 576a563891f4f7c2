"""What the command line asks of an agent in standalone mode (dra_agent.control_socket carries it).

Requests are decoded strictly: an unknown operation or field is refused, and nothing of it is done.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dra_agent.errors import UsageError

SOCKET = "agent.sock"
"""Its name in the state directory."""

LINE_LIMIT = 8 * 1024 * 1024
"""Bytes of one request."""


class Apply(msgspec.Struct, tag_field="op", tag="apply", forbid_unknown_fields=True):
    """Take in DeviceClasses and ResourceClaims, all or none."""

    objects: list[dict[str, Any]]


class Get(msgspec.Struct, tag_field="op", tag="get", forbid_unknown_fields=True):
    """One claim, or with `wait` seconds the claim once it is prepared, failed or gone."""

    namespace: str
    name: str
    wait: float = 0.0


class ListClaims(msgspec.Struct, tag_field="op", tag="list", forbid_unknown_fields=True):
    """Every claim."""


class ListClasses(msgspec.Struct, tag_field="op", tag="classes", forbid_unknown_fields=True):
    """Every DeviceClass."""


class Delete(msgspec.Struct, tag_field="op", tag="delete", forbid_unknown_fields=True):
    """Release a claim, or forget a class; `wait` seconds for the release to be complete."""

    kind: str
    name: str
    namespace: str = ""
    wait: float = 0.0


class State(msgspec.Struct, tag_field="op", tag="state", forbid_unknown_fields=True):
    """Everything that a what-if question needs: node, driver, classes, slices and allocated claims."""


Request = Apply | Get | ListClaims | ListClasses | Delete | State


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def decode_request(line: bytes) -> Request:
    """Read one request; raises UsageError for anything that is none."""
    try:
        return _requests.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"not a request: {error}") from error
