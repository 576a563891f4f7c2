"""A preparer that takes no new claims while the host is being taken: a pod that starts now would only be killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.reclaim.state import ReclaimState

_Prepared = TypeVar("_Prepared", covariant=True)


class Preparing(Protocol[_Prepared]):
    """Who does the work; see dra_agent.prepare.Preparer."""

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[_Prepared]:
        """Prepare a claim."""

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""


class GatedPreparer(Preparing[_Prepared]):
    """Prepares as another does, but nothing new while a notice holds. Called on several threads."""

    def __init__(
        self,
        preparer: Preparing[_Prepared],
        state: Callable[[], ReclaimState],
        known: Callable[[str, Deadline], object | None],
        prepared: Callable[[dict[str, Any]], None] = lambda claim: None,
        refused: Callable[[dict[str, Any]], None] = lambda claim: None,
    ) -> None:
        """`known` finds what the ledger has of a claim's uid: a repeat of what is prepared is answered as ever.

        Of a ledger that agents of a rolling update share it gives what is true now. `prepared` is told of each claim
        that was prepared, `refused` of each that was not; they must not wait.
        """
        self._preparer = preparer
        self._state = state
        self._known = known
        self._prepared = prepared
        self._refused = refused

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[_Prepared]:
        """Prepare a claim; RetryableError where it is a new one and the host is being taken."""
        state = self._state()
        if state.phase == "notice" and self._known(str(claim["metadata"].get("uid", "")), deadline) is None:
            cause = state.cause
            assert cause is not None
            self._refused(claim)
            raise RetryableError(
                f"this host is being taken ({cause.source}: {cause.what}), so no new claim is prepared on it",
                hint="delete the pod: its successor is scheduled elsewhere",
            )
        done = self._preparer.prepare(claim, deadline)
        self._prepared(claim)
        return done

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim, whatever is announced."""
        return self._preparer.unprepare(uid, deadline)
