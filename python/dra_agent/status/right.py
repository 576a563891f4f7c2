"""A right that the credentials may lack: said once with what to grant, and asked for again only now and then."""

from __future__ import annotations

import logging

from dra_agent.cluster import ForbiddenError, InvalidObjectError
from dra_agent.errors import PermanentError

log = logging.getLogger(__name__)

AGAIN = 600.0
"""Seconds after which a refused right is tried again: somebody may have granted it."""

# A right to a part of a claim's status that is missing is a field error, and so answered with 422 instead of 403
# (kubernetes, pkg/registry/resource/utils.go).
_PART = "Forbidden: changing status"


def lacks_right(error: PermanentError) -> bool:
    """Whether a request was refused for a right that could be granted, and not for what it says."""
    return isinstance(error, ForbiddenError) or (isinstance(error, InvalidObjectError) and _PART in error.what)


class Right:
    """One right of the agent's identity."""

    def __init__(self, what: str, grant: str) -> None:
        """`what` is not done without it ("claim status is not written"); `grant` names the RBAC rule."""
        self._what = what
        self._grant = grant
        self.missing = ""
        """Why it is refused at present; empty where it is not known to be."""

    def refused(self, error: PermanentError) -> None:
        """Take note; logs the first time."""
        if not self.missing:
            log.warning(self._what, extra={"reason": str(error.what), "grant": self._grant})
        self.missing = str(error)

    def granted(self) -> None:
        """Take note that it worked."""
        if self.missing:
            log.info("a right that was missing is there now", extra={"grant": self._grant})
        self.missing = ""
