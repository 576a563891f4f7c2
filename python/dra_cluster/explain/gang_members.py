"""The members of a gang: pods that have to be placed together, by kinds of equal members."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dra_agent.api_object import Object
from dra_cluster.explain.pod_claims import PodClaim


@dataclass
class Member:
    """One pod."""

    name: str
    claims: list[Object]
    """The claims that it uses; some may have an allocation, and other members may use some too."""


@dataclass
class MemberKind:
    """Members that need the same."""

    name: str
    pod: Object
    """The constraints of each member."""
    members: list[Member] = field(default_factory=list)
    """Those without a node, in order."""
    running: Counter[str] = field(default_factory=Counter)
    """How many members are on each node already."""
    problems: list[str] = field(default_factory=list)
    """Why a member cannot exist."""
    extended: PodClaim | None = None
    """The claim that kube-scheduler would create for the extended resources of its first member: its last one."""


@dataclass
class Gang:
    """The members."""

    subject: str
    """Such as `Job team-a/train`."""
    kinds: list[MemberKind]
    order: list[int]
    """The kind of each member without a node, in the order of scheduling."""
    needed: int
    """How many members have to be on a node, with those that are."""
    problems: list[str] = field(default_factory=list)
    """Why it cannot start."""
    lacks_quota: list[str] = field(default_factory=list)
    """Why the claims of all members cannot exist at once."""
    notes: list[str] = field(default_factory=list)
    quotes: list[Object] = field(default_factory=list)
    """What other controllers recorded about its groups, and Kueue about its Workloads."""
    end: str | None = None
    """How its workload ended."""

    @property
    def running(self) -> int:
        """How many members are on a node already."""
        return sum(kind.running.total() for kind in self.kinds)

    @property
    def total(self) -> int:
        """How many members there are."""
        return self.running + len(self.order)
