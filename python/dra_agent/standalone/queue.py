"""The queue of claims: waiting claims are allocated in the order in which they came, and allocated claims are prepared.

A claim that does not fit does not block later ones, as in kube-scheduler, but is tried first each time a device is
released. Every step is persisted before the next one starts, so an interrupted step is continued at the next start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dra_agent.api_object import Object, full_name, results_of
from dra_agent.errors import NoSuchObjectError
from dra_agent.prepare import ClaimPreparer
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.attempts import ClaimAttempts
from dra_agent.standalone.claim import ApplyResult, ClaimPage, ClaimView, claim_of
from dra_agent.standalone.claim_workers import ClaimWorkers
from dra_agent.standalone.evaluation import Evaluation
from dra_agent.standalone.fair_lock import FairLock
from dra_agent.standalone.index import ClaimIndex, KnownClaim
from dra_agent.standalone.intake import now, plan, receive
from dra_agent.standalone.protocol import MAX_BRIEF_PAGE_CLAIMS, MAX_PAGE_CLAIMS
from dra_agent.standalone.runs import EndedRuns, token_of
from dra_agent.standalone.store import Store
from dra_agent.standalone.stored_form import CLASS
from dra_agent.standalone.tries import ClaimTries
from dra_agent.standalone.views import ClaimViews

log = logging.getLogger(__name__)

CLAIMS_AT_A_TIME = 500
"""Claims that are handled while the lock is held; other work of the queue comes between."""
MAX_PAGE_BYTES = 1 << 20
"""ResourceClaims of a page: it ends with the first one that exceeds this."""


class ClaimQueue:
    """Claims from apply to release. Safe for threads; steps come one after another, on one thread.

    Work that may take long runs without the lock, so that requests are served then: the allocator is called by the
    step itself, preparing and releasing are attempts on threads of `workers`. A step after each attempt continues with
    the changed claims.
    """

    def __init__(
        self,
        store: Store,
        *,
        node: str,
        slices: Callable[[], list[Object]],
        allocator: ClusterAllocator,
        preparer: ClaimPreparer,
        clock: Callable[[], float],
        workers: ClaimWorkers | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._changes = threading.RLock()
        """Held by one request that changes stored objects at a time, before `_lock`; for as long as it takes."""
        self._lock = FairLock()
        """Guards the index and the attempts, for short times: everything waits for it."""
        self._claims = ClaimIndex(store)
        self._evaluation = Evaluation(store.path.parent)
        self._evaluation.strike_interrupted(self._claims)
        self._attempts = ClaimAttempts(self._claims, self._lock, preparer=preparer, clock=clock, workers=workers)
        self._views = ClaimViews(self._claims, self._attempts)
        self._ended_runs = EndedRuns()
        self._devices_changed = False
        self._suspended = ""
        """Why nothing is allocated or prepared; empty while it is."""
        self._releasing = False
        self._stopped = False
        self._tries = ClaimTries(
            self._claims,
            self._lock,
            self._evaluation,
            evaluate=partial(allocator.allocate, node=node),
            slices=slices,
            clock=clock,
            is_halted=lambda: self._stopped or bool(self._suspended),
            store=self._store_allocation,
        )

    def restore(self, entries: Iterable[Object], driver: str) -> list[str]:
        """Add the claims that only the ledger has to the store, and return their names."""
        with self._lock:
            restored = []
            for entry in entries:
                if self._claims.of_uid(entry["uid"]) is None:
                    claim = claim_of(entry, driver)
                    self._claims.put([claim])
                    restored.append(full_name(claim))
                    log.warning("claim restored from the ledger", extra={"claim": entry["uid"]})
            return restored

    def apply(self, values: list[Object]) -> list[ApplyResult]:
        """Store DeviceClasses and ResourceClaims, all or none, and return the result of each.

        Raises AgentError for an invalid object.

        The lock is held only to compare them with the stored ones, and then for a few claims at a time: a request may
        have thousands.
        """
        with self._changes:
            incoming = receive(values)
            with self._lock:
                self._ended_runs.refuse(values)
                change = plan(incoming, self._store, self._claims)
            claims = change.claims()
            self._claims.write([claim for claim, _ in claims], change.classes)
            with self._lock:
                for name in change.classes:
                    self._claims.class_changed(name)
            for first in range(0, len(claims), CLAIMS_AT_A_TIME):
                with self._lock:
                    self._claims.add(claims[first : first + CLAIMS_AT_A_TIME])
            return change.results

    def preview(self, values: list[Object]) -> list[ApplyResult]:
        """Return the result of `apply` for each object without a change; raises AgentError for what `apply` refuses."""
        incoming = receive(values)
        with self._lock:
            self._ended_runs.refuse(values)
            return plan(incoming, self._store, self._claims).results

    def delete(self, namespace: str, name: str) -> str:
        """Start to release a claim and return its uid; `reconcile` completes it.

        Raises NoSuchObjectError for an unknown name.

        A claim without devices is deleted when this returns.
        """
        with self._changes, self._lock:
            known = self._claims.require(namespace, name)
            uid = known.uid
            if uid in self._claims.waiting and not self._attempts.is_in_flight(uid):
                self._attempts.forget(known)
            elif uid not in self._claims.deleting:
                claim = self._claims.read(known)
                claim["metadata"]["deletionTimestamp"] = now()
                self._claims.put([claim])
                # However long a prepare that fails would have waited for its next try.
                self._attempts.retry_now(uid)
            return uid

    def release_run(self, namespace: str, name: str, token: str) -> str | None:
        """Start to release the claim of a run and return its uid; None if the claim of this name has another token.

        A claim with this token can no longer be applied.
        """
        with self._changes, self._lock:
            self._ended_runs.add(token)
            known = self._claims.find(namespace, name)
            if known is None or token_of(self._claims.read(known)) != token:
                return None
            return self.delete(namespace, name)

    def delete_class(self, name: str) -> None:
        """Delete a DeviceClass; allocated claims keep their devices. Raises NoSuchObjectError."""
        with self._changes, self._lock:
            if not self._claims.delete_class(name):
                raise NoSuchObjectError(f"there is no DeviceClass {name}")

    def devices_changed(self) -> None:
        """Try every waiting claim again at the next `step`. Takes no lock: for the event loop."""
        self._devices_changed = True

    def reconcile(
        self, *, budget_s: float | None = None, is_requested: Callable[[], bool] = lambda: False
    ) -> float | None:
        """Bring every claim as far as it gets; the result is the seconds after which another try is worth it.

        After `budget_s` seconds the rest is deferred to the next step, and the result is 0. So is what can wait, once
        another step is requested.
        """
        deadline = None if budget_s is None else self._clock() + budget_s
        with self._lock:
            if self._devices_changed:
                self._devices_changed = False
                self._claims.waiting.devices_changed()
            for uid in [*self._claims.deleting]:
                self._attempts.release(self._claims.deleting[uid])
            for uid in [*self._claims.allocated]:
                if uid in self._claims.deleting:
                    continue
                if not self._suspended:
                    self._attempts.prepare(uid)
                elif self._releasing:
                    self._attempts.deallocate(uid)
        while not self._suspended and not self._stopped:
            if deadline is not None and self._clock() >= deadline:
                with self._lock:
                    if self._claims.waiting.needs_try():
                        return 0.0
                break
            if is_requested():
                with self._lock:
                    if not self._claims.waiting.is_due():
                        return 0.0
            if not self._tries.try_batch(deadline):
                break
        with self._lock:
            return self._attempts.due_in()

    def stop(self) -> None:
        """End a running step once its allocation returns; the result is discarded."""
        self._stopped = True
        self._evaluation.stop()

    def is_tried(self, uids: Iterable[str]) -> bool:
        """Whether these claims were tried since the last relevant change, or are deleted."""
        with self._lock:
            waiting = self._claims.waiting
            return bool(self._suspended) or all(uid not in waiting or waiting.is_tried(uid) for uid in uids)

    def is_settled(self, uids: Iterable[str]) -> bool:
        """Whether nothing is done or about to be done to these claims: ready, refused, or to be tried later."""
        with self._lock:
            return self.is_tried(uids) and all(map(self._rests, uids))

    def _rests(self, uid: str) -> bool:
        if self._attempts.is_in_flight(uid):
            return False
        if uid in self._claims.deleting:
            return not self._attempts.is_due(uid)
        if uid in self._claims.allocated:
            if self._suspended:
                return not self._releasing or not self._attempts.is_due(uid)
            return uid in self._attempts.prepared or not self._attempts.is_due(uid)
        return True

    def is_final(self, namespace: str, name: str) -> bool:
        """Return whether a claim is prepared or failed; raises NoSuchObjectError if it does not exist."""
        with self._lock:
            uid, claims = self._claims.require(namespace, name).uid, self._claims
            if uid in claims.deleting:
                return False
            return uid in self._attempts.prepared or not (uid in claims.waiting or uid in claims.allocated)

    def suspend(self, why: str, *, release: bool) -> None:
        """Allocate and prepare nothing until `resume`; with `release` also release allocated claims, at `step`.

        A released claim waits in its old place for devices.
        """
        with self._lock:
            self._suspended, self._releasing = why, release

    def change_reason(self, why: str) -> None:
        """Change the reason of `suspend`."""
        with self._lock:
            if self._suspended:
                self._suspended = why

    def resume(self) -> None:
        """Allocate and prepare again, in the old order, from the next `step` on."""
        with self._lock:
            self._suspended, self._releasing = "", False
            self._attempts.failures.clear()
            self._claims.waiting.devices_changed()

    def view(self, namespace: str, name: str) -> ClaimView:
        """Return one claim; raises NoSuchObjectError if it does not exist."""
        with self._lock:
            known = self._claims.require(namespace, name)
            (view,) = self._views.show([(known, self._claims.read(known))], self._suspended)
            return view

    def views(self) -> list[ClaimView]:
        """Return all claims, oldest first. The lock is held for one page at a time."""
        views: list[ClaimView] = []
        after: int | None = 0
        while after is not None:
            page = self.page(after)
            views += page.claims
            after = page.next
        return views

    def page(
        self, after: int = 0, limit: int = MAX_PAGE_CLAIMS, *, allocated: bool = False, whole: bool = True
    ) -> ClaimPage:
        """Return up to `limit` claims that came after a place in the queue, oldest first.

        Arguments:
            after: 0, or `next` of the page before.
            limit: At most MAX_PAGE_CLAIMS, without the ResourceClaims MAX_BRIEF_PAGE_CLAIMS. A page with large claims
                has fewer.
            allocated: Only those that hold devices.
            whole: With the ResourceClaims. Without them nothing is read from the store.
        """
        limit = max(1, min(limit, MAX_PAGE_CLAIMS if whole else MAX_BRIEF_PAGE_CLAIMS))
        page = self._part_of_page(after, min(limit, MAX_PAGE_CLAIMS), allocated=allocated, whole=whole)
        claims = page.claims
        while not whole and page.next is not None and len(claims) < limit:
            # The lock is free between the parts.
            page = self._part_of_page(
                page.next, min(limit - len(claims), MAX_PAGE_CLAIMS), allocated=allocated, whole=False
            )
            claims += page.claims
        return ClaimPage(claims, page.next)

    def _part_of_page(self, after: int, limit: int, *, allocated: bool, whole: bool) -> ClaimPage:
        with self._lock:
            if allocated:
                known = [one for one in self._allocated_in_order() if one.position > after][:limit]
            else:
                known = self._claims.after(after, limit)
            values = self._claims.read_many(known, max_bytes=MAX_PAGE_BYTES) if whole else [{} for _ in known]
            shown = known[: len(values)]
            more = len(known) == limit or len(shown) < len(known)
            claims = self._views.show([*zip(shown, values, strict=True)], self._suspended)
            return ClaimPage(claims, shown[-1].position if more else None)

    def views_of(self, keys: Sequence[tuple[str, str]], *, whole: bool = True) -> list[ClaimView]:
        """Return the existing claims of these namespaces and names; of many, CLAIMS_AT_A_TIME in a call.

        `whole`: with the ResourceClaims. Without them nothing is read from the store.
        """
        with self._lock:
            known = [one for key in keys if (one := self._claims.find(*key)) is not None]
            values = self._claims.read_many(known) if whole else [{} for _ in known]
            return self._views.show([*zip(known, values, strict=True)], self._suspended)

    def allocated_views(self) -> list[ClaimView]:
        """Show the claims that hold devices, oldest first."""
        with self._lock:
            # From memory: a reclaim has to release them also while the store cannot be read.
            claims = [(one, self._claims.allocated[one.uid]) for one in self._allocated_in_order()]
            return self._views.show(claims, self._suspended)

    def _allocated_in_order(self) -> list[KnownClaim]:
        known = (self._claims.of_uid(uid) for uid in self._claims.allocated)
        return sorted((one for one in known if one is not None), key=lambda one: one.position)

    def uid_of(self, namespace: str, name: str) -> str | None:
        """Return the uid of a claim; None if it does not exist."""
        with self._lock:
            known = self._claims.find(namespace, name)
            return None if known is None else known.uid

    def classes(self) -> list[Object]:
        """Return every DeviceClass."""
        return [stored.value for stored in self._store.list(CLASS)]

    def allocated(self) -> list[Object]:
        """Return every claim that holds devices."""
        with self._lock:
            return [*self._claims.allocated.values()]

    def _store_allocation(self, known: KnownClaim, allocation: Object) -> None:
        """Persist an allocation, unless the claim was deleted meanwhile or allocation is suspended."""
        with self._lock:
            if known.uid not in self._claims.waiting or self._suspended or self._stopped:
                return
            claim = self._claims.read(known)
            claim["status"] = {"allocation": allocation}
            self._claims.put([claim])
            log.info("claim allocated", extra={"claim": known.uid, "devices": _devices(claim)})
            self._attempts.prepare(known.uid)


def _devices(claim: Object) -> list[str]:
    return [f"{r['pool']}/{r['device']}" for r in results_of(claim)]
