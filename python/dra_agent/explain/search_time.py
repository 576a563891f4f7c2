"""How long the search of an explanation may take, so that the whole of it ends in time."""

from __future__ import annotations

from collections.abc import Sequence

from dra_agent.api_object import Object, requests_of

ATTEMPT_S = 0.5
MAX_ATTEMPTS_S = 5.0
"""What `Cluster.explain` needs at most after its deadlines: an attempt for each claim and request, and all attempts
(rust/engine/allocator/src/explain/joint_conflicts.rs)."""


def search_s(seconds: float, claims: Sequence[Object]) -> float:
    """Return the deadline for an explanation of claims on one node that ends after so many seconds."""
    # The search and the explanation have a deadline of this length each.
    return (seconds - attempts_s(seconds, claims)) / 2


def attempts_s(seconds: float, claims: Sequence[Object]) -> float:
    """Return what the attempts after the deadlines of an explanation need, but at most half of the time."""
    longest = max((len(requests_of(claim)) for claim in claims), default=0)
    return min(MAX_ATTEMPTS_S, ATTEMPT_S * (len(claims) + longest), seconds / 2)
