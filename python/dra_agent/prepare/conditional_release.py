"""Releases a claim only if that is still right by its entry, behind the same decorators as the kubelet's requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.prepare.preparer import MayRelease, Preparer


class ConditionalRelease:
    """A ClaimPreparer for one release; an error of `may_release` is that of `unprepare`."""

    def __init__(self, preparer: Preparer, may_release: MayRelease) -> None:
        self._preparer = preparer
        self._may_release = may_release

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim."""
        return self._preparer.prepare(claim, deadline)

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release the claim if `may_release` is true of its entry."""
        return self._preparer.release_if(uid, self._may_release, deadline)
