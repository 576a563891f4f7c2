"""The interface through which every part prepares and releases a claim, with or without decorators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline


class ClaimPreparer(Protocol):
    """Makes an allocated claim ready for containers, and undoes it. Called on several threads.

    Implemented by `Preparer` and by its decorators, which `agent/preparer_stack.py` stacks. Both methods raise
    AgentError, at the deadline RetryableError.
    """

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim (the API's JSON), or check and repair a prepared one; returns its devices with CDI ids."""
        ...

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim; an unknown one is not an error."""
        ...
