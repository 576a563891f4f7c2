"""The decorators around `prepare.Preparer`: the one place that stacks them, from the inside out.

Each line states why the decorator is where it is. The decorators know only the protocol
`prepare.claim_preparer.ClaimPreparer`; the modes give them what they need, and serve the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra_agent.metrics.instrumented_preparer import CallMonitor, InstrumentedPreparer
from dra_agent.prepare import ClaimPreparer, Preparer

if TYPE_CHECKING:
    from dra_agent.deadline import Deadline
    from dra_agent.metrics.registry import Metrics
    from dra_agent.prepare.ledger import JournalLedger
    from dra_agent.prepare.preparer import MayRelease
    from dra_agent.reclaim.kubernetes import NodeDrain
    from dra_agent.reclaim.service import ReclaimService
    from dra_agent.status import ClaimStatusWriter, EventRecorder
    from dra_agent.status.orphaned_claims import OrphanedClaims

# A mode imports only its own decorators: standalone mode loads no modules of Kubernetes.


def standalone(preparer: ClaimPreparer, monitor: CallMonitor, metrics: Metrics | None) -> ClaimPreparer:
    """Return the preparer of standalone mode."""
    # Next to the preparer: what is counted and monitored is its work alone.
    return InstrumentedPreparer(preparer, monitor, metrics)


@dataclass(frozen=True, kw_only=True)
class KubernetesStack:
    """The decorators of Kubernetes mode, with what they use."""

    monitor: CallMonitor
    metrics: Metrics | None
    """Metrics of the kubelet's requests; None: nothing is counted."""
    reclaim: ReclaimService
    ledger: JournalLedger
    drain: NodeDrain
    orphaned: OrphanedClaims
    status: ClaimStatusWriter | None
    events: EventRecorder | None

    def requested(self, preparer: ClaimPreparer) -> ClaimPreparer:
        """Return the preparer of claims that the kubelet requested."""
        from dra_agent.status import ReportingPreparer

        # Around all checks: an error of each of them becomes an Event.
        return ReportingPreparer(self._checked(preparer, self.metrics), self.status, self.events)

    def release(self, preparer: Preparer, uid: str, deadline: Deadline, may_release: MayRelease) -> None:
        """Release a claim that the kubelet requested and does not release, if `may_release` is true of its entry."""
        from dra_agent.prepare.conditional_release import ConditionalRelease

        # Next to the preparer: it chooses the operation, which counts and is reported as the kubelet's request.
        self.requested(ConditionalRelease(preparer, may_release)).unprepare(uid, deadline)

    def ahead(self, preparer: Preparer) -> ClaimPreparer:
        """Return the preparer of claims whose pods wait until they are prepared; no request of the kubelet is counted.

        It does not report: the conditions of the claim state the result.
        """
        from dra_agent.prepare.ahead import AheadPreparer

        # Next to the preparer: it chooses the operation, to which all checks apply as to the kubelet's requests.
        return self._checked(AheadPreparer(preparer), None)

    def _checked(self, preparer: ClaimPreparer, metrics: Metrics | None) -> ClaimPreparer:
        from dra_agent.reclaim.gated_preparer import GatedPreparer
        from dra_agent.status.holder_checks import HolderCheckingPreparer

        # Inside of the gate: a claim that a reclaim refuses is not a request that was worked on.
        preparer = InstrumentedPreparer(preparer, self.monitor, metrics)
        # Before any work: a pod that starts now would be killed with the node.
        preparer = GatedPreparer(preparer, self.reclaim, self.ledger, self.drain)
        # Around both: the error about a holder leaves with the hint how to release it.
        return HolderCheckingPreparer(preparer, self.orphaned)
