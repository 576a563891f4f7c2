"""An error of the allocator on one node at which kube-scheduler places the pod on no node.

kube-scheduler examines all nodes that its other filters do not exclude, until enough fit. At the first error it ends
the attempt to schedule the pod, although other nodes fit (k8s.io/kubernetes v1.37.2, pkg/scheduler/schedule_one.go,
findNodesThatPassFilters). Which errors exclude their node only depends on the version
(rust/engine/allocator/src/error.rs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_cluster.explain.scheduler_version import SchedulerVersion

NOTE = (
    "not considered: a node without enough CPU, memory or volumes, or against spread or pod affinity, is excluded "
    "before its devices are examined, and then its error has no effect"
)
_MIN_FEASIBLE_NODES = 100
_MIN_PERCENTAGE = 5


class FatalError(NamedTuple):
    """The error of the first of the nodes, by name."""

    nodes: tuple[str, ...]
    """All nodes with such an error."""
    error: str
    scheduler: SchedulerVersion

    @property
    def reason(self) -> str:
        """Why a pod fits nowhere, and what to do."""
        return (
            f"an error, at which {self.scheduler.scheduler} stops for all nodes: {self.error}; repair it, or exclude "
            "the node: cordon it, or use nodeSelector or nodeAffinity of the pod"
        )

    @property
    def summary(self) -> str:
        """The reason with its node."""
        more = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        return f"fits nowhere; node {self.nodes[0]}{more}: {self.reason}"

    @property
    def caution(self) -> str:
        """What happens in a cluster in which not every attempt examines the node."""
        return (
            f"an attempt of {self.scheduler.scheduler} that examines node {self.nodes[0]} before enough others fit "
            f"ends with an error: {self.error}"
        )

    def as_object(self) -> Object:
        """Return it as JSON has it."""
        return {"node": self.nodes[0], "error": self.error, "nodes": list(self.nodes)}


def find_fatal(errors: Mapping[str, str], excluded: Collection[str], scheduler: SchedulerVersion) -> FatalError | None:
    """Return the error at which a pod fits nowhere.

    Arguments:
        errors: By node, the errors of the allocator that end the attempt.
        excluded: The nodes that another filter excludes first.
        scheduler: The version whose rules decided this.
    """
    nodes = tuple(sorted(name for name in errors if name not in excluded))
    return FatalError(nodes, errors[nodes[0]], scheduler) if nodes else None


def note_of_one_node(nodes: Iterable[str], scheduler: SchedulerVersion) -> list[str]:
    """Return the note on errors that exclude their nodes only, in the version whose rules decided this."""
    names = sorted(nodes)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [f"the error of node {names[0]}{more} excludes the node only, in {scheduler.scheduler}"] if names else []


def examines_all(nodes: int, fitting: int) -> bool:
    """Return whether kube-scheduler examines each of so many nodes, of which so many fit, in every attempt.

    Source: numFeasibleNodesToFind, with the default percentageOfNodesToScore.
    """
    percentage = max(50 - nodes // 125, _MIN_PERCENTAGE)
    return nodes < _MIN_FEASIBLE_NODES or fitting <= max(_MIN_FEASIBLE_NODES, nodes * percentage // 100)
