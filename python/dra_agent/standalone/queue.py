"""The queue of claims: what waits is allocated in the order in which it came, what is allocated is prepared.

A claim that does not fit lets later ones pass, as with kube-scheduler, but is asked first whenever a device comes free.
Every step is kept in the store before the next begins, so a stop at any point is continued at the next start.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.standalone.backoff import Backoff
from dra_agent.standalone.claim import DEFAULT_NAMESPACE, Applied, ClaimView, HeldDevice, Phase, key_of
from dra_agent.standalone.ports import Allocate, Object, Preparer
from dra_agent.standalone.restore import claim_of
from dra_agent.standalone.store import Store
from dra_agent.standalone.work import Run, Work, at_once

log = logging.getLogger(__name__)

CLASS = "DeviceClass"
CLAIM = "ResourceClaim"
FAILED = "dra-agent.internal/failed"
"""Annotation: why a claim can never be prepared as it is. It holds no device until it is applied anew."""


class ClaimQueue:
    """Claims from apply to release. Safe for threads; one step runs at a time.

    Whatever may take long, which is preparing and releasing, is given away by `run`, at most one job for each claim: a
    device that hangs holds up its own claim. A step after each job's end goes on with what that has changed.
    """

    def __init__(
        self,
        store: Store,
        *,
        node: str,
        slices: Callable[[], list[Object]],
        allocate: Allocate,
        preparer: Preparer,
        clock: Callable[[], float],
        run: Run = at_once,
    ) -> None:
        self._store = store
        self._node = node
        self._slices = slices
        self._allocate = allocate
        self._preparer = preparer
        self._lock = threading.RLock()
        self._prepared: dict[str, tuple[HeldDevice, ...]] = {}
        self._messages: dict[str, str] = {}
        self._never: set[str] = set()
        self._retries = Backoff(clock)
        self._work = Work(run)
        self._suspended = ""
        """Why nothing is allocated or prepared; empty while it is."""
        self._giving_up = False

    def restore(self, entries: Iterable[Object], driver: str) -> list[str]:
        """Take in the claims that the ledger has and the store has not; the result names them."""
        with self._lock:
            known = {stored.value["metadata"]["uid"] for stored in self._store.list(CLAIM)}
            restored = []
            for entry in entries:
                if entry["uid"] not in known:
                    claim = claim_of(entry, driver)
                    self._put(claim)
                    restored.append("/".join(key_of(claim)))
                    log.warning("claim restored from the ledger", extra={"claim": entry["uid"]})
            return restored

    def apply(self, values: list[Object]) -> list[Applied]:
        """Take in DeviceClasses and ResourceClaims, all or none; raises AgentError for what cannot be taken."""
        with self._lock:
            for value in values:
                self._check(value)
            return [
                self._apply_class(value) if value["kind"] == CLASS else self._apply_claim(value) for value in values
            ]

    def delete(self, namespace: str, name: str) -> str:
        """Begin to release a claim, and give its uid; `step` ends it. PermanentError if there is none of that name."""
        with self._lock:
            claim = self._claim(namespace, name)
            if "deletionTimestamp" not in claim["metadata"]:
                claim["metadata"]["deletionTimestamp"] = _now()
                self._put(claim)
                # However long a prepare that fails would have waited for its next try.
                self._retries.done(claim["metadata"]["uid"])
            return str(claim["metadata"]["uid"])

    def delete_class(self, name: str) -> None:
        """Forget a DeviceClass; claims that are allocated keep their devices."""
        with self._lock:
            if not self._store.delete(CLASS, "", name):
                raise PermanentError(f"there is no DeviceClass {name}")

    def step(self) -> float | None:
        """Bring every claim as far as it gets; the result is the seconds after which another try is worth it."""
        with self._lock:
            for claim in self._claims():
                if "deletionTimestamp" in claim["metadata"]:
                    self._release(claim)
                elif "allocation" in claim.get("status", {}):
                    if not self._suspended:
                        self._prepare(claim)
                    elif self._giving_up:
                        self._give_up(claim)
            for claim in self._claims():
                if _waits(claim):
                    if self._suspended:
                        self._messages[claim["metadata"]["uid"]] = self._suspended
                    else:
                        self._try_allocate(claim)
            return self._retries.next_in(besides=self._work.under_way)

    def suspend(self, why: str, *, give_up: bool) -> None:
        """Allocate and prepare nothing until `resume`; with `give_up` also release what is allocated, at `step`.

        A claim that is given up waits in its old place for devices.
        """
        with self._lock:
            self._suspended, self._giving_up = why, give_up

    def resume(self) -> None:
        """Allocate and prepare again, in the old order, from the next `step` on."""
        with self._lock:
            self._suspended, self._giving_up = "", False
            self._messages.clear()

    def view(self, namespace: str, name: str) -> ClaimView:
        """Show one claim; raises PermanentError if there is none."""
        with self._lock:
            return self._view(self._claim(namespace, name))

    def views(self) -> list[ClaimView]:
        """Show every claim, oldest first."""
        with self._lock:
            return [self._view(stored.value) for stored in self._store.list(CLAIM)]

    def classes(self) -> list[Object]:
        """Give every DeviceClass."""
        return [stored.value for stored in self._store.list(CLASS)]

    def allocated(self) -> list[Object]:
        """Give every claim that holds devices."""
        return [stored.value for stored in self._store.list(CLAIM) if "allocation" in stored.value.get("status", {})]

    def _check(self, value: Object) -> None:
        if value["kind"] not in (CLASS, CLAIM):
            raise PermanentError(
                f"{value['kind']} is nothing that the agent keeps", todo=f"apply {CLASS} and {CLAIM} objects"
            )
        namespace, name = key_of(value)
        known = self._store.get(CLAIM, namespace, name) if value["kind"] == CLAIM else None
        if known is None:
            return
        if "deletionTimestamp" in known["metadata"]:
            raise RetryableError(f"claim {namespace}/{name} is being deleted", todo="apply it again once it is gone")
        if known["spec"] != value.get("spec"):
            raise PermanentError(
                f"claim {namespace}/{name}: spec cannot be changed once it is applied",
                todo=f"delete it first: dra-agent claim delete {name} -n {namespace}",
            )

    def _apply_class(self, value: Object) -> Applied:
        name = value["metadata"]["name"]
        known = self._store.get(CLASS, "", name)
        if known is not None and known["spec"] == value.get("spec"):
            return Applied(CLASS, name, "unchanged")
        self._store.put(CLASS, "", name, _stamped(value, known))
        return Applied(CLASS, name, "created" if known is None else "configured")

    def _apply_claim(self, value: Object) -> Applied:
        namespace, name = key_of(value)
        known = self._store.get(CLAIM, namespace, name)
        if known is None:
            fresh = _stamped({**value, "metadata": {**value["metadata"], "namespace": namespace}}, None)
            fresh.pop("status", None)
            self._put(fresh)
            return Applied(CLAIM, name, "created", namespace)
        if known["metadata"].get("annotations", {}).pop(FAILED, None) is not None:
            self._put(known)
            return Applied(CLAIM, name, "configured", namespace)
        return Applied(CLAIM, name, "unchanged", namespace)

    def _try_allocate(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        answer = self._ask(claim, self.allocated())
        if not answer["allocated"]:
            fits = self._ask(claim, [])
            self._never.discard(uid)
            if not fits["allocated"]:
                self._never.add(uid)
            self._messages[uid] = _reason(answer, fits)
            return
        self._never.discard(uid)
        self._messages.pop(uid, None)
        claim["status"] = {"allocation": answer["results"][0]}
        self._put(claim)
        log.info("claim allocated", extra={"claim": uid, "devices": _devices(claim)})
        self._prepare(claim)

    def _ask(self, claim: Object, allocated: list[Object]) -> Object:
        return self._allocate(
            node=self._node, classes=self.classes(), slices=self._slices(), claims=[claim], allocated=allocated
        )

    def _prepare(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        if uid not in self._prepared and self._work.is_free(uid) and self._retries.due(uid):
            self._work.begin(uid, lambda: self._tried(uid, "prepare", lambda: self._prepare_now(claim)))

    def _prepare_now(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        try:
            devices = self._preparer.prepare(claim)
        except RetryableError:
            raise
        except AgentError as error:
            self._fail(claim, str(error))
            return
        with self._lock:
            self._retries.done(uid)
            self._messages.pop(uid, None)
            self._prepared[uid] = tuple(
                HeldDevice(tuple(d.request_names), d.pool, d.device, tuple(d.cdi_device_ids), d.share_id)
                for d in devices
            )

    def _fail(self, claim: Object, why: str) -> None:
        """Give the devices of a claim that can never be prepared to others, and keep the claim with the reason."""
        uid = claim["metadata"]["uid"]
        log.error("claim can never be prepared", extra={"claim": uid, "error": why})
        self._preparer.unprepare(uid)
        with self._lock:
            known = self._claim(*key_of(claim))
            known.pop("status", None)
            known["metadata"].setdefault("annotations", {})[FAILED] = why
            self._put(known)
            self._retries.done(uid)
            self._messages.pop(uid, None)

    def _release(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        if self._work.is_free(uid) and self._retries.due(uid):
            self._work.begin(uid, lambda: self._tried(uid, "release", lambda: self._release_now(claim)))

    def _release_now(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        self._preparer.unprepare(uid)
        with self._lock:
            self._store.delete(CLAIM, *key_of(claim))
            for known in (self._prepared, self._messages):
                known.pop(uid, None)
            self._never.discard(uid)
            self._retries.done(uid)
        log.info("claim released", extra={"claim": uid})

    def _give_up(self, claim: Object) -> None:
        """Release the devices of a claim, and let it wait for others."""
        uid = claim["metadata"]["uid"]
        if self._work.is_free(uid) and self._retries.due(uid):
            self._work.begin(uid, lambda: self._tried(uid, "release", lambda: self._give_up_now(claim)))

    def _give_up_now(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        self._preparer.unprepare(uid)
        with self._lock:
            # What is unprepared but still allocated is prepared or given up again; the other order could lose it.
            self._prepared.pop(uid, None)
            known = self._claim(*key_of(claim))
            known.pop("status", None)
            self._put(known)
            self._retries.done(uid)
        log.info("claim given up, it waits again", extra={"claim": uid})

    def _tried(self, uid: str, what: str, attempt: Callable[[], None]) -> None:
        """Make an attempt; one that fails is made again later, and costs no other claim anything."""
        try:
            attempt()
        except Exception as error:  # a defect of one set-up must not end what is done for the other claims
            if not isinstance(error, AgentError):
                log.exception("claim could not be moved along", extra={"claim": uid})
            with self._lock:
                wait = self._retries.failed(uid)
                self._messages[uid] = f"{error}; next try in {wait:.0f} s"
            log.warning(f"{what} failed, will be tried again", extra={"claim": uid, "error": str(error), "in": wait})

    def _claims(self) -> list[Object]:
        return [stored.value for stored in self._store.list(CLAIM)]

    def _claim(self, namespace: str, name: str) -> Object:
        claim = self._store.get(CLAIM, namespace, name)
        if claim is None:
            raise PermanentError(f"there is no claim {name} in namespace {namespace}")
        return claim

    def _put(self, claim: Object) -> None:
        self._store.put(CLAIM, *key_of(claim), claim)

    def _view(self, claim: Object) -> ClaimView:
        metadata = claim["metadata"]
        uid = metadata["uid"]
        devices = self._prepared.get(uid, ())
        failed = metadata.get("annotations", {}).get(FAILED)
        return ClaimView(
            namespace=metadata.get("namespace", DEFAULT_NAMESPACE),
            name=metadata["name"],
            uid=uid,
            phase=_phase(claim, uid in self._prepared),
            message=failed or self._messages.get(uid, ""),
            created=metadata["creationTimestamp"],
            devices=devices,
            cdi_device_ids=tuple(cdi_id for device in devices for cdi_id in device.cdi_device_ids),
            fits_empty_host=uid not in self._never,
            claim=claim,
        )


def _waits(claim: Object) -> bool:
    metadata = claim["metadata"]
    return (
        "deletionTimestamp" not in metadata
        and "allocation" not in claim.get("status", {})
        and FAILED not in metadata.get("annotations", {})
    )


def _phase(claim: Object, prepared: bool) -> Phase:
    if "deletionTimestamp" in claim["metadata"]:
        return "Deleting"
    if FAILED in claim["metadata"].get("annotations", {}):
        return "Failed"
    if "allocation" not in claim.get("status", {}):
        return "Pending"
    return "Prepared" if prepared else "Allocated"


def _reason(answer: Object, empty: Object) -> str:
    if answer.get("error"):
        return str(answer["error"])
    if empty["allocated"]:
        return "waits for devices that other claims hold"
    return "no devices of this host can satisfy it, even if nothing else were claimed"


def _devices(claim: Object) -> list[str]:
    return [f"{r['pool']}/{r['device']}" for r in claim["status"]["allocation"]["devices"].get("results", [])]


def _stamped(value: Object, known: Object | None) -> Object:
    before = known["metadata"] if known else {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
    kept = {key: before[key] for key in ("uid", "creationTimestamp")}
    return {**value, "metadata": {**value["metadata"], **kept}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
