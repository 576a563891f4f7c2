"""Where a claim stands, as an object of the store says it."""

from __future__ import annotations

from dra_agent.standalone.claim import Phase
from dra_agent.standalone.index import FAILED
from dra_agent.standalone.ports import Object


def phase_of(claim: Object, prepared: bool) -> Phase:
    """Return the phase of a claim; `prepared`: whether it is ready for containers."""
    if "deletionTimestamp" in claim["metadata"]:
        return "Deleting"
    if FAILED in claim["metadata"].get("annotations", {}):
        return "Failed"
    if "allocation" not in claim.get("status", {}):
        return "Pending"
    return "Prepared" if prepared else "Allocated"
