"""Attempts to prepare and to release the claims that hold devices: one at a time for each claim, repeated if it fails.

Every change of a claim is persisted before the attempt ends, so an interrupted attempt is repeated at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from dra_agent.api_object import Object, identity_of
from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.errors import AgentError, RetryableError
from dra_agent.prepare import ClaimPreparer
from dra_agent.retry import KeyedBackoff
from dra_agent.standalone.claim import FAILED, PREPARED, PreparedDevice
from dra_agent.standalone.claim_workers import ClaimWorkers, InFlightClaims
from dra_agent.standalone.fair_lock import FairLock
from dra_agent.standalone.index import ClaimIndex, KnownClaim
from dra_agent.standalone.intake import now

log = logging.getLogger(__name__)


class ClaimAttempts:
    """Not safe for threads: the queue holds `lock`, which an attempt takes only to record its result.

    The attempt itself runs without the lock, on a thread of the workers: a device that hangs delays its own claim only.
    """

    def __init__(
        self,
        claims: ClaimIndex,
        lock: FairLock,
        *,
        preparer: ClaimPreparer,
        clock: Callable[[], float],
        workers: ClaimWorkers | None,
    ) -> None:
        """`clock` returns monotonic seconds; without `workers` an attempt ends before the call that begins it."""
        self._claims = claims
        self._lock = lock
        self._preparer = preparer
        self._retries = KeyedBackoff(clock)
        self._in_flight = InFlightClaims(workers)
        self.prepared: dict[str, tuple[PreparedDevice, ...]] = {}
        """The devices of the prepared claims, by uid."""
        self.failures: dict[str, str] = {}
        """Why the last attempt failed, by the uid of a claim that is to be attempted again."""

    def prepare(self, uid: str) -> None:
        """Begin to prepare an allocated claim, unless it is prepared."""
        claim = self._claims.allocated[uid]
        if uid not in self.prepared:
            self._begin(uid, "prepare", lambda: self._prepare_now(claim))

    def release(self, known: KnownClaim) -> None:
        """Begin to release the devices of a claim, and to delete it."""
        self._begin(known.uid, "release", lambda: self._release_now(known))

    def deallocate(self, uid: str) -> None:
        """Begin to release the devices of a claim, which then waits for others."""
        claim = self._claims.allocated[uid]
        self._begin(uid, "release", lambda: self._deallocate_now(claim))

    def is_in_flight(self, uid: str) -> bool:
        """Return whether an attempt is under way for a claim."""
        return not self._in_flight.is_free(uid)

    def is_due(self, uid: str) -> bool:
        """Return whether no earlier failure defers the next attempt."""
        return self._retries.due(uid)

    def due_in(self) -> float | None:
        """Return the seconds until the next attempt that a failure deferred; None if there is none."""
        return self._retries.next_in(besides=self._in_flight.under_way)

    def retry_now(self, uid: str) -> None:
        """Make the next attempt at once, also after failures."""
        self._retries.done(uid)

    def forget(self, known: KnownClaim) -> None:
        """Delete a claim from the store, and what is known of its attempts."""
        self._claims.delete(known)
        self.prepared.pop(known.uid, None)
        self._succeeded(known.uid)

    def _begin(self, uid: str, what: str, attempt: Callable[[], None]) -> None:
        if self._in_flight.is_free(uid) and self._retries.due(uid):
            self._in_flight.begin(uid, lambda: self._attempt(uid, what, attempt))

    def _attempt(self, uid: str, what: str, attempt: Callable[[], None]) -> None:
        """Make an attempt; a failed one is repeated later, and does not affect other claims."""
        try:
            attempt()
        except Exception as error:  # a defect of one set-up must not end the work for other claims
            if not isinstance(error, AgentError):
                log.exception("claim could not be reconciled", extra={"claim": uid})
            with self._lock:
                wait = self._retries.failed(uid)
                self.failures[uid] = f"{error}; next try in {wait:.0f} s"
            log.warning(f"{what} failed, will be tried again", extra={"claim": uid, "error": str(error), "in": wait})

    def _succeeded(self, uid: str) -> None:
        self._retries.done(uid)
        self.failures.pop(uid, None)

    def _prepare_now(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        try:
            devices = self._preparer.prepare(claim, Deadline.of(CALL_TIMEOUT_S))
        except RetryableError:
            raise
        except AgentError as error:
            self._fail(claim, str(error))
            return
        with self._lock:
            self._note_prepared(uid)
            self._succeeded(uid)
            self.prepared[uid] = tuple(
                PreparedDevice(tuple(d.requests), d.pool, d.device, tuple(d.cdi_device_ids), d.share_id)
                for d in devices
            )

    def _note_prepared(self, uid: str) -> None:
        known = self._claims.of_uid(uid)
        if known is None:
            return
        kept = self._claims.read(known)
        if PREPARED not in kept["metadata"].get("annotations", {}):
            kept["metadata"].setdefault("annotations", {})[PREPARED] = now()
            self._claims.put([kept])

    def _fail(self, claim: Object, why: str) -> None:
        """Release the devices of a claim that can never be prepared, and keep the claim with the reason."""
        uid = claim["metadata"]["uid"]
        log.error("claim can never be prepared", extra={"claim": uid, "error": why})
        self._store_without_devices(claim, {FAILED: why})

    def _release_now(self, known: KnownClaim) -> None:
        self._preparer.unprepare(known.uid, Deadline.of(CALL_TIMEOUT_S))
        with self._lock:
            self.forget(known)
            self._claims.waiting.released()
        log.info("claim released", extra={"claim": known.uid})

    def _deallocate_now(self, claim: Object) -> None:
        self._store_without_devices(claim, {})
        log.info("claim released, it waits again", extra={"claim": claim["metadata"]["uid"]})

    def _store_without_devices(self, claim: Object, annotations: Mapping[str, str]) -> None:
        """Release the devices of a claim, and store it with these annotations in place of its allocation."""
        uid = claim["metadata"]["uid"]
        self._preparer.unprepare(uid, Deadline.of(CALL_TIMEOUT_S))
        with self._lock:
            # An unprepared claim that is still allocated is prepared or released again; the other order could lose it.
            self.prepared.pop(uid, None)
            kept = self._claims.read(self._claims.require(*identity_of(claim)))
            kept.pop("status", None)
            kept["metadata"].get("annotations", {}).pop(PREPARED, None)
            if annotations:
                kept["metadata"].setdefault("annotations", {}).update(annotations)
            self._claims.put([kept])
            self._claims.waiting.released()
            self._succeeded(uid)
