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
        waiting = self._claims.waiting
        some_untried = any(one.uid in waiting and waiting.refusal(one.uid) is None for one, _ in claims)
        untried = waiting.untried() if some_untried and not suspended else []
        return [self._show(one, claim, suspended, untried) for one, claim in claims]

    def _show(self, known: KnownClaim, claim: Object, suspended: str, untried: list[int]) -> ClaimView:
        uid = known.uid
        prepared = self._attempts.prepared.get(uid)
        devices = prepared or ()
        message, fits_empty_host = self._explained(known, suspended, untried)
        return ClaimView(
            namespace=known.namespace,
            name=known.name,
            uid=uid,
            phase=self._phase(uid, is_prepared=prepared is not None),
            message=self._claims.failed.get(uid) or message,
            created=known.created,
            prepared=self._prepared_since(uid) if prepared is not None else "",
            devices=devices,
            cdi_device_ids=tuple(cdi_id for device in devices for cdi_id in device.cdi_device_ids),
            fits_empty_host=fits_empty_host,
            claim=claim,
        )

    def _phase(self, uid: str, *, is_prepared: bool) -> Phase:
        if uid in self._claims.deleting:
            return "Deleting"
        if uid in self._claims.failed:
            return "Failed"
        if uid not in self._claims.allocated:
            return "Pending"
        return "Prepared" if is_prepared else "Allocated"

    def _prepared_since(self, uid: str) -> str:
        claim = self._claims.allocated.get(uid)
        since: str = "" if claim is None else claim["metadata"].get("annotations", {}).get(PREPARED, "")
        return since

    def _explained(self, known: KnownClaim, suspended: str, untried: list[int]) -> tuple[str, bool]:
        """Return why a claim is not prepared, and whether it would fit on an empty host, if known."""
        waiting, uid = self._claims.waiting, known.uid
        if uid not in waiting:
            failure = self._attempts.failures.get(uid, "")
            if failure or uid in self._attempts.prepared or uid not in self._claims.allocated:
                return failure, True
            return suspended or UNDER_WAY, True
        refusal = waiting.refusal(uid)
        fits_empty_host = refusal is None or refusal.fits_empty_host is not False
        if suspended:
            return suspended, fits_empty_host
        if refusal is not None:
            return refusal.message.replace(f"claim {refusal.named}", "claim " + "/".join(known.key)), fits_empty_host
        before = bisect_left(untried, known.position)
        others = {0: "", 1: ": 1 claim is before it"}.get(before, f": {before} claims are before it")
        return f"is not tried yet{others}", fits_empty_host
