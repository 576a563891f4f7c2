"""A permission that the credentials may lack: logged once with the rule to grant, and retried at long intervals."""

from __future__ import annotations

import logging

from dra_agent.errors import PermanentError
from dra_agent.kube_client import ForbiddenError, InvalidObjectError
from dra_agent.kube_client.errors import StatusCause
from dra_agent.retry import Backoff

log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
"""Seconds after the first refusal, which may be temporary: authorization caches are updated late."""
RETRY_AFTER_S = 600.0
"""Seconds between attempts while the permission is missing."""

_FORBIDDEN_FIELDS = frozenset(
    {StatusCause("FieldValueForbidden", field) for field in ("status.devices", "status.driver")}
)
"""A missing permission for a part of a claim's status is a field error, with status 422 instead of 403
(kubernetes, pkg/registry/resource/utils.go)."""


def lacks_permission(error: PermanentError) -> bool:
    """Whether a request was rejected for a missing permission, not for its content."""
    if isinstance(error, InvalidObjectError):
        return not _FORBIDDEN_FIELDS.isdisjoint(error.details.causes)
    return isinstance(error, ForbiddenError)


class PermissionMonitor:
    """One permission of the agent's identity."""

    def __init__(
        self, message: str, grant: str, *, level: int = logging.WARNING, retry_after_s: float | None = None
    ) -> None:
        """`message` is not done without it ("claim status is not written"); `grant` names the RBAC rule or chart value.

        `level` is that of the message in the log: ERROR for what a user has enabled. `retry_after_s` is the longest
        pause between two tries, in seconds; None: RETRY_AFTER_S.
        """
        self._message = message
        self._grant = grant
        self._level = level
        retry_after_s = RETRY_AFTER_S if retry_after_s is None else retry_after_s
        self._backoff = Backoff(first=FIRST_RETRY_S, longest=retry_after_s)
        self.missing = ""
        """Why it is refused at present; empty where it is not known to be."""

    def refused(self, error: PermanentError, *, hint: str = "") -> float:
        """Record the refusal and return the seconds until the next try; logs the first time.

        `hint` is another way to resolve it.
        """
        if not self.missing:
            extra = {"reason": str(error.message), "grant": self._grant}
            log.log(self._level, self._message, extra=extra | ({"todo": hint} if hint else {}))
        self.missing = str(error)
        return self._backoff.delay()

    def granted(self) -> None:
        """Record a success."""
        if self.missing:
            log.info("a permission that was missing is granted", extra={"grant": self._grant})
        self.missing = ""
        self._backoff.reset()
