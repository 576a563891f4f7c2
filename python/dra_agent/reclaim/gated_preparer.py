"""A preparer that refuses new claims while the node is being reclaimed: a pod that starts now would be killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.service import ReclaimService

if TYPE_CHECKING:
    from dra_agent.reclaim.kubernetes import NodeDrain


class GatedPreparer:
    """Wraps a preparer; refuses new claims while a notice is active. Thread-safe."""

    def __init__(
        self, preparer: ClaimPreparer, reclaim: ReclaimService, ledger: JournalLedger, drain: NodeDrain | None = None
    ) -> None:
        """`ledger` has the claims that are prepared: these are prepared again. `drain` is informed of each claim."""
        self._preparer = preparer
        self._reclaim = reclaim
        self._ledger = ledger
        self._drain = drain

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim.

        Raises:
            RetryableError: for a new claim while the node is being reclaimed, and as the wrapped preparer does.
        """
        state = self._reclaim.state
        # Another agent of a rolling update may have prepared the claim, so the entry is read within a lease.
        if state.phase == "notice" and self._ledger.current(str(claim["metadata"].get("uid", "")), deadline) is None:
            cause = state.cause
            assert cause is not None
            if self._drain is not None:
                self._drain.refused(claim)
            raise RetryableError(
                f"this node is being reclaimed ({cause.source}: {cause.description}), "
                "so no new claim is prepared on it",
                hint="delete the pod: its successor is scheduled elsewhere",
            )
        devices = self._preparer.prepare(claim, deadline)
        if self._drain is not None:
            self._drain.prepared(claim)
        return devices

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim, in every state of the reclaim."""
        return self._preparer.unprepare(uid, deadline)
