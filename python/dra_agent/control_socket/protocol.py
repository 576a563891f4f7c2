"""An answer on the wire: a result, or an error's three parts and its family, raised again on the other side."""

from __future__ import annotations

from typing import Any

import msgspec

from dra_agent.errors import AgentError, PermanentError, RetryableError, UsageError


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """Why a request was not done."""

    what: str
    where: str | None = None
    hint: str | None = msgspec.field(default=None, name="todo")
    family: str = "permanent"


class Response(msgspec.Struct, omit_defaults=True):
    """Either a result or a failure."""

    result: Any = None
    failure: ErrorBody | None = None


_FAMILIES: dict[str, type[AgentError]] = {"permanent": PermanentError, "retryable": RetryableError, "usage": UsageError}


def failure_of(error: AgentError) -> ErrorBody:
    """Turn an error into what goes over the socket."""
    family = next(name for name, kind in reversed(_FAMILIES.items()) if isinstance(error, kind))
    return ErrorBody(error.message, error.where, error.hint, family)


def raise_failure(failure: ErrorBody) -> None:
    """Raise what the other side could not do as if it had been found here."""
    kind = _FAMILIES.get(failure.family, PermanentError)
    raise kind(failure.what, where=failure.where, hint=failure.hint)
