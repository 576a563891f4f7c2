"""A preparer that refuses new claims while the node is being reclaimed: a pod that starts now would be killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare import ClaimPreparer
from dra_agent.reclaim.state import ReclaimState


class GatedPreparer:
    """Prepares as another does, but nothing new while a notice holds. Called on several threads."""

    def __init__(
        self,
        preparer: ClaimPreparer,
        state: Callable[[], ReclaimState],
        known: Callable[[str, Deadline], object | None],
        prepared: Callable[[dict[str, Any]], None] = lambda claim: None,
        refused: Callable[[dict[str, Any]], None] = lambda claim: None,
    ) -> None:
        """`known` returns the ledger entry of a claim's uid: a repeat of a prepared claim is accepted.

        For a ledger that agents of a rolling update share it returns the current state. `prepared` is called for each
        claim that was prepared, `refused` of each that was not; they must not wait.
        """
        self._preparer = preparer
        self._state = state
        self._known = known
        self._prepared = prepared
        self._refused = refused

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim; raises RetryableError for a new one while the node is being reclaimed."""
        state = self._state()
        if state.phase == "notice" and self._known(str(claim["metadata"].get("uid", "")), deadline) is None:
            cause = state.cause
            assert cause is not None
            self._refused(claim)
            raise RetryableError(
                f"this node is being reclaimed ({cause.source}: {cause.what}), so no new claim is prepared on it",
                hint="delete the pod: its successor is scheduled elsewhere",
            )
        done = self._preparer.prepare(claim, deadline)
        self._prepared(claim)
        return done

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim, whatever is announced."""
        return self._preparer.unprepare(uid, deadline)
