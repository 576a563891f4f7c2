"""Claims as the command line shows them: phase, reason and devices, from the index in memory.

Only the ResourceClaim itself is read from the store, where it is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from dra_agent.api_object import Object
from dra_agent.standalone.attempts import ClaimAttempts
from dra_agent.standalone.claim import PREPARED, UNDER_WAY, ClaimView, Phase
from dra_agent.standalone.index import ClaimIndex, KnownClaim


class ClaimViews:
    """Not safe for threads: the queue holds its lock."""

    def __init__(self, claims: ClaimIndex, attempts: ClaimAttempts) -> None:
        self._claims = claims
        self._attempts = attempts

    def show(self, claims: Sequence[tuple[KnownClaim, Object]], suspended: str) -> list[ClaimView]:
        """Show claims, each with the ResourceClaim for its view; `suspended`: why nothing is allocated, or empty."""
        waiting, views = self._claims.waiting, []
        untried: list[int] | None = None
        for known, claim in claims:
            group = waiting.group(known.uid)
            if group is None:
                views.append(self._show(known, claim, suspended))
                continue
            refusal = group.refusal
            if suspended:
                message = suspended
            elif refusal is not None:
                message = refusal.message_for(known.key)
            else:
                untried = waiting.untried() if untried is None else untried
                message = _not_tried(bisect_left(untried, known.position))
            fits_empty_host = refusal is None or refusal.fits_empty_host is not False
            # Positional arguments, because there may be thousands.
            views.append(
                ClaimView(
                    known.namespace,
                    known.name,
                    known.uid,
                    "Pending",
                    message,
                    known.created,
                    "",  # prepared
                    (),
                    (),
                    fits_empty_host,
                    claim,
                )
            )
        return views

    def _show(self, known: KnownClaim, claim: Object, suspended: str) -> ClaimView:
        """Show a claim that does not wait for devices."""
        uid = known.uid
        prepared = self._attempts.prepared.get(uid)
        devices = prepared or ()
        return ClaimView(
            namespace=known.namespace,
            name=known.name,
            uid=uid,
            phase=self._phase(uid, is_prepared=prepared is not None),
            message=self._claims.failed.get(uid) or self._unprepared(uid, suspended),
            created=known.created,
            prepared=self._prepared_since(uid) if prepared is not None else "",
            devices=devices,
            cdi_device_ids=tuple(cdi_id for device in devices for cdi_id in device.cdi_device_ids),
            fits_empty_host=True,
            claim=claim,
        )

    def _phase(self, uid: str, *, is_prepared: bool) -> Phase:
        if uid in self._claims.deleting:
            return "Deleting"
        if uid in self._claims.failed:
            return "Failed"
        return "Prepared" if is_prepared else "Allocated"

    def _prepared_since(self, uid: str) -> str:
        claim = self._claims.allocated.get(uid)
        since: str = "" if claim is None else claim["metadata"].get("annotations", {}).get(PREPARED, "")
        return since

    def _unprepared(self, uid: str, suspended: str) -> str:
        """Return why a claim that does not wait is not prepared."""
        failure = self._attempts.failures.get(uid, "")
        if failure or uid in self._attempts.prepared or uid not in self._claims.allocated:
            return failure
        return suspended or UNDER_WAY


def _not_tried(before: int) -> str:
    if before > 1:
        return f"is not tried yet: {before} claims are before it"
    return "is not tried yet: 1 claim is before it" if before else "is not tried yet"
