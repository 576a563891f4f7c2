"""Tries of waiting claims: each asks the allocator for devices, and records them or the reason why there are none.

The oldest claims are tried first, in batches, so that thousands of claims that wait cost few reads. The allocator is
called without the lock of the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_agent.standalone.evaluation import Evaluation
from dra_agent.standalone.index import ClaimIndex, KnownClaim
from dra_agent.standalone.relaxed import relaxed
from dra_agent.standalone.waiting import Group, Kindred, Refusal

FITS_LATER = "waits for devices that other claims hold"
FITS_NEVER = "no devices of this host can satisfy it, even if nothing else were claimed"
MAX_BATCH_GROUPS = 64
"""Claims with different specs that are read at a time to be tried."""
MAX_RELAXED_QUERY_S = 1.0
"""A relaxed spec has more candidates, so the search may take longer than those for the specs themselves."""


class Try(NamedTuple):
    """The oldest claim of a group, as it was read to be tried."""

    known: KnownClaim
    claim: Object
    group: Group
    version: tuple[int, int]
    fits_empty_host: bool | None


class ClaimTries:
    """Used by the steps of the queue, on one thread."""

    def __init__(
        self,
        claims: ClaimIndex,
        lock: threading.RLock,
        evaluation: Evaluation,
        *,
        evaluate: Callable[..., Object],
        slices: Callable[[], list[Object]],
        clock: Callable[[], float],
        is_halted: Callable[[], bool],
        store: Callable[[KnownClaim, Object], None],
    ) -> None:
        """`lock` is that of the queue; `evaluate` and `store` take it if they need it.

        Arguments:
            claims: The claims of the queue.
            lock: Guards them.
            evaluation: Notes the claim that is evaluated.
            evaluate: ClusterAllocator.allocate for this node.
            slices: Returns the devices.
            clock: Returns monotonic seconds.
            is_halted: Whether nothing is to be allocated now.
            store: Persists the allocation of a claim.
        """
        self._claims = claims
        self._lock = lock
        self._evaluation = evaluation
        self._evaluate = evaluate
        self._slices = slices
        self._clock = clock
        self._is_halted = is_halted
        self._store = store
        self._batch_groups = 1
        """Grows while claims are refused: the first of a batch that is allocated ends it."""

    def try_batch(self, deadline: float | None) -> bool:
        """Try the oldest claims that need it, until one is allocated; False where none needs it.

        What they have in common is read once for all of them. The batch ends at the deadline, and at a change that its
        claims depend on.
        """
        with self._lock:
            if self._is_halted():
                return False
            kindred = self._claims.waiting.released_kindred()
            tries = self._next_tries() if kindred is None else []
            if kindred is None and not tries:
                return False
            allocated, classes = [*self._claims.allocated.values()], self._claims.classes()
        evaluate = partial(self._evaluate, classes=classes, slices=self._slices())
        with self._evaluation.several() as note:
            if kindred is not None:
                self._try_relaxed(kindred, evaluate, allocated, note)
            else:
                self._try_each(tries, evaluate, allocated, note, deadline)
        return True

    def _next_tries(self) -> list[Try]:
        found = []
        for uid, group in self._claims.waiting.oldest(self._batch_groups):
            known = self._claims.of_uid(uid)
            assert known is not None, "a waiting claim is in the store"
            found.append((known, group))
        claims = self._claims.read_many([known for known, _ in found])
        return [
            Try(known, claim, group, group.version, group.fits_empty_host)
            for (known, group), claim in zip(found, claims, strict=True)
        ]

    def _try_each(
        self,
        tries: list[Try],
        evaluate: Callable[..., Object],
        allocated: list[Object],
        note: Callable[[str], None],
        deadline: float | None,
    ) -> None:
        for place, one in enumerate(tries):
            if place and deadline is not None and self._clock() >= deadline:
                return
            with self._lock:
                is_outdated = one.group.version != one.version or one.known.uid not in self._claims.waiting
                if is_outdated or self._is_halted():
                    return
            note(one.known.uid)
            if not self._try(one, evaluate, allocated):
                self._batch_groups = 1
                return
        self._batch_groups = min(2 * self._batch_groups, MAX_BATCH_GROUPS)

    def _try(self, one: Try, evaluate: Callable[..., Object], allocated: list[Object]) -> bool:
        """Try one claim, and record the result; False where it was allocated."""
        result = evaluate(claims=[one.claim], allocated=allocated)
        if result["allocated"]:
            self._store(one.known, result["results"][0])
            return False
        fits_empty_host = one.fits_empty_host
        if fits_empty_host is None:
            fits_empty_host = evaluate(claims=[one.claim], allocated=[])["allocated"]
        message = str(result["error"]) if result.get("error") else FITS_LATER if fits_empty_host else FITS_NEVER
        with self._lock:
            refusal = Refusal(message, "/".join(one.known.key), fits_empty_host)
            self._claims.waiting.refuse(one.group, one.version, refusal)
        return True

    def _try_relaxed(
        self, kindred: Kindred, evaluate: Callable[..., Object], allocated: list[Object], note: Callable[[str], None]
    ) -> None:
        """Try the relaxed spec of groups after a release; while it does not fit, their results stay valid."""
        with self._lock:
            group = next(kindred.waiting_for_devices(), None)
            known = None if group is None else self._claims.of_uid(group.first()[1])
            if known is None:
                return
            releases, claim = kindred.releases, self._claims.read(known)
        note(known.uid)
        began = self._clock()
        result = evaluate(claims=[{**claim, "spec": relaxed(claim["spec"])}], allocated=allocated)
        took_long = self._clock() - began > MAX_RELAXED_QUERY_S
        with self._lock:
            kindred.is_undecided = took_long or bool(result.get("error"))
            if result["allocated"] or result.get("error"):
                self._claims.waiting.try_all(kindred)
            else:
                self._claims.waiting.keep_refusals(kindred, releases)
