"""A preparer whose refusals have the holder of a device checked, so that a later attempt succeeds if it is orphaned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ledger import DeviceHeldError
from dra_agent.prepare.preparer import OtherDevicesError
from dra_agent.status.orphaned_claims import OrphanedClaims


class HolderCheckingPreparer:
    """Decorator of a preparer that has holders checked."""

    def __init__(self, preparer: ClaimPreparer, orphaned: OrphanedClaims) -> None:
        self._preparer = preparer
        self._orphaned = orphaned

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim; DeviceHeldError and OtherDevicesError have a hint how to release the holder."""
        try:
            devices = self._preparer.prepare(claim, deadline)
        except OtherDevicesError as error:
            uid = str(claim["metadata"]["uid"])
            self._orphaned.suspect([uid])
            raise OtherDevicesError(
                error.message, where=error.where, hint=f"if no process uses the previous ones, {_hint(uid)}"
            ) from error
        except DeviceHeldError as error:
            holders = self._orphaned.holders(claim)
            if not holders:
                raise
            self._orphaned.suspect([entry.uid for entry in holders])
            hint = f"if that claim no longer exists or has its devices, {_hint(holders[0].uid)}"
            raise DeviceHeldError(error.message, where=error.where, public=error.public, hint=hint) from error
        self._orphaned.prepared(claim)
        return devices

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""
        result = self._preparer.unprepare(uid, deadline)
        self._orphaned.unprepared(uid)
        return result


def _hint(uid: str) -> str:
    return (
        f"the agent releases it automatically within minutes, or at once: `dra-agent claim release {uid}` on this node"
    )
