"""Prepared claims that no longer have their devices: the ledger is compared with the API server, and they are released.

The kubelet unprepares the claims of its checkpoint. After `kubeadm reset`, or with a lost `dra_manager_state`, it has
none, and the ledger would hold the devices until the node is reinstalled. A claim is orphaned if the API server returns
404 for its name, has another claim of that name, or has it without its allocation or with other devices (of another
node, for example), in two checks that are `confirm_after_s` apart. Any other response means nothing.

The release is of the entry that was checked: the claim is read once more while its lock keeps it from being prepared.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, NamedTuple

from dra_agent.api_object import consumers_of, results_of
from dra_agent.clock import boottime
from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.health.published_health import unusable_reason
from dra_agent.host import Host
from dra_agent.inventory.model import device_key
from dra_agent.kube_client import RESOURCE_CLAIMS, ApiClient, NotFoundError
from dra_agent.prepare import record as records
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.prepare.preparer import MayRelease
from dra_agent.status.device_status import NodeDevices
from dra_agent.status.events import CLAIM_GONE, EventRecorder, ObjectReference
from dra_agent.status.orphan_checks import NO_LONGER_EXISTS, orphan_reason, require_unused_claim
from dra_agent.supervisor import on_thread, supervisor

if TYPE_CHECKING:
    from dra_agent.telemetry.claim_pods import ClaimPods

log = logging.getLogger(__name__)

CONFIRM_AFTER_S = 180.0
"""Between the two checks of one claim."""
START_SPREAD_S = 60.0
"""The first check of every claim comes within this after a start: agents of many nodes start together."""
PERIOD_S = 1200.0
"""Between two checks while nothing is suspected, each of one claim; half to one and a half times this."""
RETRY_S = 60.0
"""Seconds between two attempts to release an orphaned claim; at most the time between two checks."""
LEAST_RETRY_S = 1.0
"""Between two attempts if the time between two checks is shorter."""
GET_TIMEOUT_S = 10.0

Release = Callable[[str, Deadline, MayRelease], object]
"""Releases the claim of a UID if `MayRelease` is true of its entry; called on a thread."""


class Suspicion(NamedTuple):
    """The first check that found a claim orphaned."""

    since: float
    entry: LedgerEntry


class OrphanedClaims:
    """Checks from `start` to `stop`; `HolderCheckingPreparer` reports claims to check."""

    def __init__(
        self,
        api: ApiClient,
        ledger: JournalLedger,
        host: Host,
        devices: NodeDevices,
        events: EventRecorder,
        *,
        driver: str,
        confirm_after_s: float = CONFIRM_AFTER_S,
        claim_pods: ClaimPods | None = None,
        is_leader: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = boottime,
        spread: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`confirm_after_s`: 0 never releases on its own. `is_leader`: whether this agent is the one that does so.

        `claim_pods` gets each claim that was read, with the devices that it holds.
        """
        self._api = api
        self._ledger = ledger
        self._host = host
        self._devices = devices
        self._events = events
        self._driver = driver
        self._confirm_after_s = confirm_after_s
        self._retry_s = max(LEAST_RETRY_S, min(RETRY_S, confirm_after_s))
        self._claim_pods = claim_pods
        self._is_leader = is_leader
        self._now = now
        self._spread = spread
        self._release: Release | None = None
        self.suspicions: dict[str, Suspicion] = {}
        """By UID of the claim."""
        self._pods: dict[str, frozenset[str]] = {}
        """UIDs of the pods for which a claim was last reserved when it had its devices, by UID of the claim.

        They may have joined after it was prepared, and be missing in the ledger.
        """
        self._due: dict[str, float] = {}
        self._next_entry = 0
        self._reported: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, release: Release) -> None:
        """Start to check, on the running loop."""
        self._release = release
        self._loop = asyncio.get_running_loop()
        if self._confirm_after_s > 0:
            self._task = supervisor().loop("orphaned claims", self._run)

    async def stop(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def holders(self, claim: dict[str, Any]) -> list[LedgerEntry]:
        """Return the entries that hold a device that the claim was allocated."""
        requested = {
            device_key(str(one.get("pool")), str(one.get("device"))) for one in results_of(claim, self._driver)
        }
        own = claim.get("metadata", {}).get("uid")
        return [
            entry
            for entry in self._ledger.entries()
            if entry.uid != own and any(device_key(held.pool, held.device) in requested for held in entry.devices)
        ]

    def unusable(self) -> list[dict[str, str]]:
        """Return the devices of prepared claims that cannot be used, and why."""
        held = {(item.pool, item.device) for entry in self._ledger.entries() for item in entry.devices if item.request}
        return [
            {"pool": pool, "device": name, "reason": reason}
            for pool, name in sorted(held)
            if (reason := unusable_reason(self._devices.lookup(pool, name)))
        ]

    def suspect(self, uids: Sequence[str]) -> None:
        """Check these claims at once, unless that is under way; callable from any thread."""

        def add() -> None:
            for uid in uids:
                if uid not in self.suspicions or uid not in self._due:
                    self._due[uid] = self._now()
            self._wake.set()

        if self._loop is not None and self._confirm_after_s > 0:
            self._loop.call_soon_threadsafe(add)

    def prepared(self, claim: dict[str, Any]) -> None:
        """Record a claim that was prepared as the API server returned it; callable from any thread."""
        uid = str(claim["metadata"]["uid"])
        self.suspicions.pop(uid, None)
        self._pods[uid] = frozenset(str(consumer.get("uid")) for consumer in consumers_of(claim))

    def unprepared(self, uid: str) -> None:
        """Forget a claim that was released; callable from any thread."""
        self.suspicions.pop(uid, None)
        self._pods.pop(uid, None)
        self._reported.pop(uid, None)

    async def release(self, name: str, *, force: bool) -> dict[str, Any]:
        """Unprepare a claim on request of an operator, by its UID or NAMESPACE/NAME; return the result.

        PermanentError where the ledger has no such claim, or has several, or the claim still has its devices and
        `force` is not given; RetryableError where the API server does not respond, a process has a device open, or that
        cannot be known, and `force` is not given.
        """
        entry = self._named(name)
        reason = await self._orphan_reason(entry)
        if not force:
            if reason == "":
                raise PermanentError(
                    "still exists in the API server, and has its devices",
                    where=entry.with_uid,
                    hint="delete its pod: the kubelet then releases it; --force releases it while the pod may run",
                )
            if reason is None:
                raise _unknown(entry, "--force releases it while the pod may run")
            await on_thread(self._check_unused, entry)
        await self._do_release(entry, verify=not force)
        log.warning("claim released by an operator", extra={"claim": entry.uid, "forced": force})
        return {
            "uid": entry.uid,
            "namespace": entry.namespace,
            "name": entry.name,
            "devices": [device.device for device in entry.devices if device.request],
            "exists": None if reason is None else reason != NO_LONGER_EXISTS,
            "forced": force,
        }

    def _named(self, name: str) -> LedgerEntry:
        namespace, slash, short = name.partition("/")
        found = [
            entry
            for entry in self._ledger.entries()
            if ((entry.namespace, entry.name) == (namespace, short) if slash else entry.uid == name)
        ]
        if len(found) == 1:
            return found[0]
        raise PermanentError(
            f"{len(found)} prepared claims have this name" if found else "no claim of this name is prepared here",
            where=name,
            hint="name it by its UID; `dra-agent claim holders` lists them",
        )

    async def _run(self) -> None:
        first = self._now() + self._spread(0.0, START_SPREAD_S)
        self._due |= dict.fromkeys((entry.uid for entry in self._ledger.entries()), first)
        next_round = first + self._spread(0.5, 1.5) * PERIOD_S
        while True:
            wait = min([next_round, *self._due.values()]) - self._now()
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, wait)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            try:
                if self._now() >= next_round:
                    next_round = self._now() + self._spread(0.5, 1.5) * PERIOD_S
                    self._choose_one()
                await self.check_due()
            except Exception:  # a defect here must not end the comparison
                log.exception("prepared claims are not compared with the API server this time")
                self._due = {uid: self._now() + self._retry_s for uid in self._due}

    def _choose_one(self) -> None:
        entries = self._ledger.entries()
        if entries:
            self._next_entry += 1
            self._due.setdefault(entries[self._next_entry % len(entries)].uid, self._now())

    async def check_due(self) -> None:
        """Check the claims whose time has come, and release those that are orphaned."""
        with_pods = list(self._pods)  # before the entries: claims are prepared meanwhile
        entries = {entry.uid: entry for entry in self._ledger.entries()}
        for uid in with_pods:
            if uid not in entries:
                self._pods.pop(uid, None)
        for uid in [uid for uid, due in self._due.items() if due <= self._now()]:
            self._due.pop(uid, None)
            entry = entries.get(uid)
            if entry is None or not self._is_leader():
                self.suspicions.pop(uid, None)
                continue
            try:
                await self._check(entry)
            except Exception:  # a defect for one claim must not affect the others, nor have it forgotten
                log.exception("prepared claim is not compared with the API server this time", extra={"claim": uid})
                self._due[uid] = self._now() + self._retry_s

    async def _check(self, entry: LedgerEntry) -> None:
        reason = await self._orphan_reason(entry)
        if reason == "":
            self.suspicions.pop(entry.uid, None)
            return
        suspicion = self.suspicions.get(entry.uid)
        if reason is None:
            # A claim that was orphaned is checked again; others are not affected.
            if suspicion is not None:
                self._due[entry.uid] = self._now() + self._retry_s
            return
        if suspicion is None or suspicion.entry != entry:
            self.suspicions[entry.uid] = Suspicion(self._now(), entry)
            self._due[entry.uid] = self._now() + self._confirm_after_s
            log.warning(
                "prepared claim no longer has its devices in the API server; it is checked again",
                extra={"claim": entry.uid, "claim_name": entry.full_name, "reason": reason},
            )
            return
        if (remaining_s := suspicion.since + self._confirm_after_s - self._now()) > 0:
            self._due[entry.uid] = self._now() + remaining_s
            return
        try:
            await on_thread(self._check_unused, entry)
            await self._do_release(entry, verify=True)
        except AgentError as error:
            self._due[entry.uid] = self._now() + self._retry_s
            if self._reported.get(entry.uid) != str(error):
                self._reported[entry.uid] = str(error)
                log.warning(
                    "orphaned claim cannot be released; `dra-agent claim release` does it by hand",
                    extra={"claim": entry.uid, "reason": str(error)},
                )
            return
        self._reported.pop(entry.uid, None)
        devices = ", ".join(device.device for device in entry.devices if device.request)
        log.warning("orphaned claim was released", extra={"claim": entry.uid, "reason": reason, "devices": devices})
        message = f"{entry.with_uid} {reason}: released {devices}"
        self._events.record(CLAIM_GONE, ObjectReference.node(self._events.node), message)

    async def _do_release(self, entry: LedgerEntry, *, verify: bool) -> None:
        """Release a claim if its entry is this one; with `verify`, also only if it is still orphaned."""
        release, loop = self._release, asyncio.get_running_loop()
        assert release is not None

        def may_release(current: LedgerEntry) -> bool:
            # On the thread that has the lock of the claim: no prepare of it can complete meanwhile, and one that has
            # completed has read the claim before.
            if current != entry:
                raise RetryableError("has changed since it was checked", where=entry.with_uid)
            if verify:
                reading = asyncio.run_coroutine_threadsafe(self._orphan_reason(entry), loop)
                try:
                    reason = reading.result(2 * GET_TIMEOUT_S)
                except (CancelledError, TimeoutError):  # the agent stops, or its loop does not run
                    reading.cancel()
                    reason = None
                if reason is None:
                    raise _unknown(entry)
                if reason == "":
                    raise RetryableError("has its devices again", where=entry.with_uid)
            return True

        await on_thread(release, entry.uid, Deadline.of(CALL_TIMEOUT_S), may_release)
        self.suspicions.pop(entry.uid, None)

    async def _orphan_reason(self, entry: LedgerEntry) -> str | None:
        """Return why a claim no longer has its devices, by the API server now; "" if it has them, None if unknown."""
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, entry.name, entry.namespace, timeout=GET_TIMEOUT_S)
        except NotFoundError as error:
            return NO_LONGER_EXISTS if error.is_of(entry.name) else None
        except AgentError:
            return None
        reason = orphan_reason(entry, claim, self._driver, self._users(entry))
        if reason == "":
            self._pods[entry.uid] = frozenset(str(consumer.get("uid")) for consumer in consumers_of(claim))
            if self._claim_pods is not None:
                self._claim_pods.seen(claim)
        return reason

    def _check_unused(self, entry: LedgerEntry) -> None:
        require_unused_claim(self._host, self._devices, entry, self._users(entry))

    def _users(self, entry: LedgerEntry) -> frozenset[str]:
        return self._pods.get(entry.uid, frozenset()) | records.pods(entry)


def _unknown(entry: LedgerEntry, hint: str = "") -> RetryableError:
    return RetryableError(
        "cannot be compared with the API server, which does not respond, or not with a claim that can be compared",
        where=entry.with_uid,
        hint=hint,
    )
