"""A right that the credentials may lack: said once with what to grant, and asked for again only now and then."""

from __future__ import annotations

import logging

from dra_agent.errors import PermanentError
from dra_agent.kube_client import Backoff, ForbiddenError, InvalidObjectError

log = logging.getLogger(__name__)

FIRST_AGAIN_S = 1.0
"""After a first refusal, which may pass: a server learns of a new right late, a claim was freed meanwhile."""
AGAIN = 600.0
"""Seconds after which a right that stays refused is tried again: somebody may have granted it."""

# A right to a part of a claim's status that is missing is a field error, and so answered with 422 instead of 403
# (kubernetes, pkg/registry/resource/utils.go).
_PART = "Forbidden: changing status"


def lacks_right(error: PermanentError) -> bool:
    """Whether a request was refused for a right that could be granted, and not for what it says."""
    return isinstance(error, ForbiddenError) or (isinstance(error, InvalidObjectError) and _PART in error.message)


class PermissionMonitor:
    """One right of the agent's identity."""

    def __init__(self, what: str, grant: str, *, again: float = AGAIN) -> None:
        """`what` is not done without it ("claim status is not written"); `grant` names the RBAC rule.

        `again` is the longest pause between two tries, in seconds.
        """
        self._what = what
        self._grant = grant
        self._backoff = Backoff(first=FIRST_AGAIN_S, longest=again)
        self.missing = ""
        """Why it is refused at present; empty where it is not known to be."""

    def refused(self, error: PermanentError) -> float:
        """Take note, and give the seconds after which to try again; logs the first time."""
        if not self.missing:
            log.warning(self._what, extra={"reason": str(error.message), "grant": self._grant})
        self.missing = str(error)
        return self._backoff.delay()

    def granted(self) -> None:
        """Take note that it worked."""
        if self.missing:
            log.info("a right that was missing is there now", extra={"grant": self._grant})
        self.missing = ""
        self._backoff.reset()
