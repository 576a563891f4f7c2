"""Errors of requests to the API server: each is a retryable or a permanent error of the agent.

HTTP's numbers are Kubernetes': k8s.io/apimachinery/pkg/apis/meta/v1/types.go (StatusReason).
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from time import time  # noqa: TID251 - Retry-After can be a date
from typing import Any, NamedTuple

from dra_agent.errors import PermanentError, RetryableError


class StatusCause(NamedTuple):
    """One reason of a response (StatusCause): a field that was refused, or a condition of the server."""

    reason: str = ""
    """CauseType of the API, such as FieldValueForbidden or NamespaceTerminating."""
    field: str = ""


class StatusDetails(NamedTuple):
    """What a Status object states besides its message, which has no stable wording."""

    name: str = ""
    """Name of the object that the server refers to; empty where it does not know the kind."""
    causes: tuple[StatusCause, ...] = ()


class UnavailableError(RetryableError):
    """No connection, a timeout, a 5xx, or a response that is not from an API server."""

    def __init__(
        self, message: str, *, where: str | None = None, hint: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.retry_after = retry_after
        """Retry-After in seconds, if any."""


class ThrottledError(UnavailableError):
    """429: the server has too much to do."""


class ConflictError(RetryableError):
    """409: the object was changed, replaced or created by another client."""


class GoneError(RetryableError):
    """410: the resource version is too old to continue; list again."""


class UnauthorizedError(RetryableError):
    """401: the credentials are not accepted (any more); they are read again before this is raised."""


class RejectedError(PermanentError):
    """A 4xx that a repeat does not change: base of the errors below."""

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        details: StatusDetails = StatusDetails(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.details = details


class ForbiddenError(RejectedError):
    """403: the identity may not do this."""


class NotFoundError(RejectedError):
    """404: no such object, or no such kind."""

    def is_of(self, name: str) -> bool:
        """Whether the server has no object of this name; it returns 404 without a name for a kind that it lacks."""
        return self.details.name == name


class InvalidObjectError(RejectedError):
    """400, 413, 422 and the like: the request itself is refused."""


_BY_STATUS: dict[int, tuple[type[RetryableError] | type[RejectedError], str | None]] = {
    HTTPStatus.UNAUTHORIZED: (
        UnauthorizedError,
        "check that the token or the client certificate is valid and has not expired",
    ),
    HTTPStatus.FORBIDDEN: (ForbiddenError, "grant this identity the permission; deploy/ has the RBAC rules"),
    HTTPStatus.NOT_FOUND: (NotFoundError, None),
    HTTPStatus.CONFLICT: (ConflictError, None),
    HTTPStatus.GONE: (GoneError, None),
}


def error_for_status(
    status: int,
    message: str,
    *,
    where: str,
    retry_after: float | None = None,
    details: StatusDetails = StatusDetails(),  # noqa: B008 (immutable)
) -> Exception:
    """Return the error for a status of 400 or more."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(message, where=where, retry_after=retry_after)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return UnavailableError(f"{message} (HTTP {status})", where=where, retry_after=retry_after)
    kind, hint = _BY_STATUS.get(status, (InvalidObjectError, None))
    if issubclass(kind, RejectedError):
        return kind(message, where=where, hint=hint, details=details)
    return kind(message, where=where, hint=hint)


def status_message(document: Any) -> str | None:
    """Return the message of a Status object; None if the document is not one."""
    if not isinstance(document, Mapping) or document.get("kind") != "Status":
        return None
    message = document.get("message") or document.get("reason")
    return str(message) if message else None


def status_details(document: Any) -> StatusDetails:
    """Return the details of a Status object; empty for anything else, and for what is malformed."""
    details = document.get("details") if isinstance(document, Mapping) else None
    if not isinstance(details, Mapping):
        return StatusDetails()
    causes = details.get("causes")
    return StatusDetails(
        _text(details, "name"),
        tuple(
            StatusCause(_text(cause, "reason"), _text(cause, "field"))
            for cause in (causes if isinstance(causes, list) else ())
            if isinstance(cause, Mapping)
        ),
    )


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def retry_after(value: str | None) -> float | None:
    """Read a Retry-After header: seconds, or an HTTP date. None for an invalid value."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        from email.utils import parsedate_to_datetime  # half a megabyte, for a form that few servers use

        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (TypeError, ValueError):
        return None
