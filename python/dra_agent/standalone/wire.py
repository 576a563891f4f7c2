"""What goes over the socket between command line and agent: one JSON line there, one JSON line back.

Requests are decoded strictly: an unknown operation or field is refused, and nothing of it is done.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dra_agent.errors import AgentError, PermanentError, RetryableError, UsageError

SOCKET = "agent.sock"
"""Its name in the state directory."""

LINE_LIMIT = 8 * 1024 * 1024
"""Bytes of one request or answer."""


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


class Failure(msgspec.Struct, omit_defaults=True):
    """Why a request was not done."""

    what: str
    where: str | None = None
    todo: str | None = None
    family: str = "permanent"


class Answer(msgspec.Struct, omit_defaults=True):
    """Either a result or a failure."""

    result: Any = None
    failure: Failure | None = None


_FAMILIES: dict[str, type[AgentError]] = {"permanent": PermanentError, "retryable": RetryableError, "usage": UsageError}
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def decode_request(line: bytes) -> Request:
    """Read one request; raises UsageError for anything that is none."""
    try:
        return _requests.decode(line)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a request: {error}") from error


def failure_of(error: AgentError) -> Failure:
    """Turn an error into what goes over the socket."""
    family = next(name for name, kind in reversed(_FAMILIES.items()) if isinstance(error, kind))
    return Failure(error.what, error.where, error.todo, family)


def raise_failure(failure: Failure) -> None:
    """Raise what the other side could not do as if it had been found here."""
    kind = _FAMILIES.get(failure.family, PermanentError)
    raise kind(failure.what, where=failure.where, todo=failure.todo)
