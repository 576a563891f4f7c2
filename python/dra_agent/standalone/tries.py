"""Tries of waiting claims: each asks the allocator for devices, and records them or the reason why there are none.

The oldest claims are tried first, in batches, so that thousands of claims that wait cost few reads. The allocator is
called without the lock of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_agent.standalone.evaluation import Evaluation
from dra_agent.standalone.fair_lock import FairLock
from dra_agent.standalone.groups import Form, Group, Refusal, digest_of
from dra_agent.standalone.index import ClaimIndex, KnownClaim
from dra_agent.standalone.relaxed import RelaxedTries, relaxed
from dra_agent.standalone.selection import DeviceSelection

FITS_LATER = "waits for devices that other claims hold"
FITS_NEVER = "no devices of this host can satisfy it, even if nothing else were claimed"
MAX_BATCH_GROUPS = 64
"""Claims with different specs that are read at a time to be tried."""
MAX_IDLE_GROUPS = 8
"""The same for claims whose devices are looked up while nothing else is to do: a request that comes waits for them."""


class Try(NamedTuple):
    """The oldest claim of a group, as it was read to be tried."""

    known: KnownClaim
    claim: Object
    group: Group
    version: int


class ClaimTries:
    """Used by the steps of the queue, on one thread."""

    def __init__(
        self,
        claims: ClaimIndex,
        lock: FairLock,
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
        self._selection = DeviceSelection()
        self._relaxed = RelaxedTries(clock)
        self._batch_groups = 1
        """Grows while claims are refused: the first of a batch that is allocated ends it."""

    def try_batch(self, deadline: float | None) -> bool:
        """Try the oldest claims that need it, until one is allocated; False where none needs it.

        Claims that were refused for their relaxed form are tried only if that form may fit now.

        What they have in common is read once for all of them. The batch ends at the deadline, and at a change that its
        claims depend on.
        """
        with self._lock:
            tries, form = self._next_tries()
            if not tries:
                self._selection.forget()
                self._relaxed.forget()
                return False
            allocated, classes = [*self._claims.allocated.values()], self._claims.classes()
        slices = self._slices()
        evaluate = partial(self._evaluate, classes=classes, slices=slices)
        classify = partial(self._selection.key_of, classes=classes, slices=slices)
        with self._evaluation.several() as note:
            if form is not None:
                self._try_form(form, tries[0], evaluate, allocated, note)
            else:
                self._try_each(tries, evaluate, classify, allocated, note, deadline)
        return True

    def _next_tries(self) -> tuple[list[Try], Form | None]:
        """Read what needs a try: a claim of a released form, with that form, or the oldest claims.

        If nothing else needs a try, these are claims of which only the relaxed form was tried.
        """
        if self._is_halted():
            return [], None
        waiting = self._claims.waiting
        form = waiting.released_form()
        if form is not None:
            (one,) = self._read([form.first()])
            return [one._replace(version=form.version)], form
        return self._read(waiting.oldest(self._batch_groups) or waiting.unclassified(MAX_IDLE_GROUPS)), None

    def _read(self, oldest: list[tuple[str, Group]]) -> list[Try]:
        found = []
        for uid, group in oldest:
            known = self._claims.of_uid(uid)
            assert known is not None, "a waiting claim is in the store"
            found.append((known, group))
        claims = self._claims.read_many([known for known, _ in found])
        return [Try(known, claim, group, group.version) for (known, group), claim in zip(found, claims, strict=True)]

    def _try_form(
        self,
        form: Form,
        one: Try,
        evaluate: Callable[..., Object],
        allocated: list[Object],
        note: Callable[[str], None],
    ) -> None:
        """Try a relaxed form again; `one` is any claim with this form, and has the version of the form."""
        note(one.known.uid)
        may_fit = self._relaxed.may_fit(
            one.claim, form.digest, {}, lambda claim: evaluate(claims=[claim], allocated=allocated)
        )
        with self._lock:
            if may_fit:
                self._claims.waiting.try_each(form)
            else:
                self._claims.waiting.keep_refusals(form, one.version)

    def _try_each(
        self,
        tries: list[Try],
        evaluate: Callable[..., Object],
        classify: Callable[[Object], bytes | None],
        allocated: list[Object],
        note: Callable[[str], None],
        deadline: float | None,
    ) -> None:
        relaxed_results: dict[bytes, bool] = {}
        for place, one in enumerate(tries):
            if place and deadline is not None and self._clock() >= deadline:
                return
            with self._lock:
                if not self._is_current(one):
                    return
                is_one_of_many = not one.group.is_classified and self._claims.waiting.has_many_specs
                is_untried = one.group.refusal is None
            note(one.known.uid)
            current: Try | None = one
            if is_one_of_many:
                if is_untried:
                    form = digest_of(relaxed(one.claim["spec"]))
                    if not self._relaxed.may_fit(
                        one.claim, form, relaxed_results, lambda claim: evaluate(claims=[claim], allocated=allocated)
                    ):
                        self._refuse(one, FITS_LATER, fits_empty_host=None, form=form)
                        continue
                current = self._classified(one, classify)
            if current is None:
                return
            refusal = current.group.refusal
            is_known = refusal is not None and refusal.fits_empty_host is not None
            if not is_known and not self._try(current, evaluate, allocated):
                self._batch_groups = 1
                return
        self._batch_groups = min(2 * self._batch_groups, MAX_BATCH_GROUPS)

    def _is_current(self, one: Try) -> bool:
        is_outdated = one.group.version != one.version or one.known.uid not in self._claims.waiting
        return not is_outdated and not self._is_halted()

    def _classified(self, one: Try, classify: Callable[[Object], bytes | None]) -> Try | None:
        """Find the group of all specs with the same results; None if its oldest claim is another one, or after changes.

        The group may have a result already.
        """
        key = classify(one.claim["spec"])
        with self._lock:
            if not self._is_current(one):
                return None
            group = self._claims.waiting.classify(one.group, key)
            if group.refusal is None and group.first()[1] != one.known.uid:
                return None
            return one._replace(group=group, version=group.version)

    def _try(self, one: Try, evaluate: Callable[..., Object], allocated: list[Object]) -> bool:
        """Try one claim, and record the result; False where it was allocated."""
        result = evaluate(claims=[one.claim], allocated=allocated)
        if result["allocated"]:
            self._store(one.known, result["results"][0])
            return False
        fits_empty_host = one.group.fits_empty_host
        if fits_empty_host is None:
            fits_empty_host = evaluate(claims=[one.claim], allocated=[])["allocated"]
        message = str(result["error"]) if result.get("error") else FITS_LATER if fits_empty_host else FITS_NEVER
        self._refuse(one, message, fits_empty_host=fits_empty_host)
        return True

    def _refuse(self, one: Try, message: str, *, fits_empty_host: bool | None, form: bytes | None = None) -> None:
        with self._lock:
            refusal = Refusal(message, "/".join(one.known.key), fits_empty_host)
            self._claims.waiting.refuse(one.group, one.version, refusal, form)
