"""Prepared claims that no longer exist: the ledger is compared with the API server, and they are released.

The kubelet unprepares the claims of its checkpoint. After `kubeadm reset`, or with a lost `dra_manager_state`, it has
none, and the ledger would hold the devices until the node is reinstalled. A claim counts as deleted if the API server
returns 404 for its name, or has another claim of that name, in two checks that are `confirm_after_s` apart. Any other
response means nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dra_agent.api_object import results_of
from dra_agent.claim import ClaimDevice
from dra_agent.clock import boottime
from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.device_setup.open_files import SEARCH_TIMEOUT_S, device_nodes, require_unused
from dra_agent.errors import AgentError, PermanentError
from dra_agent.health.published_health import unusable_reason
from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_key
from dra_agent.kube_client import RESOURCE_CLAIMS, ApiClient, NotFoundError
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ledger import DeviceHeldError, JournalLedger, LedgerEntry
from dra_agent.status.device_status import NodeDevices
from dra_agent.status.events import CLAIM_GONE, EventRecorder, ObjectReference

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
"""Seconds between two attempts to release a deleted claim."""
GET_TIMEOUT_S = 10.0


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

        `claim_pods` gets each claim that was read.
        """
        self._api = api
        self._ledger = ledger
        self._host = host
        self._devices = devices
        self._events = events
        self._driver = driver
        self._confirm_after_s = confirm_after_s
        self._claim_pods = claim_pods
        self._is_leader = is_leader
        self._now = now
        self._spread = spread
        self._unprepare: Callable[[str, Deadline], object] | None = None
        self.deleted_since: dict[str, float] = {}
        """Time of the first check that found a claim deleted, by UID."""
        self._due: dict[str, float] = {}
        self._next_entry = 0
        self._reported: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, unprepare: Callable[[str, Deadline], object]) -> None:
        """Start to check, on the running loop; `unprepare` releases a claim, and is called on a thread."""
        self._unprepare = unprepare
        self._loop = asyncio.get_running_loop()
        if self._confirm_after_s > 0:
            self._task = asyncio.create_task(self._run(), name="orphaned claims")

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
                if uid not in self.deleted_since:
                    self._due[uid] = self._now()
            self._wake.set()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(add)

    async def release(self, name: str, *, force: bool) -> dict[str, Any]:
        """Unprepare a claim on request of an operator, by its UID or NAMESPACE/NAME; return the result.

        PermanentError where the ledger has no such claim, or has several, or the claim still exists and `force` is not
        given; RetryableError where a process has a device open, or that cannot be known, and `force` is not given.
        """
        entry = self._named(name)
        deleted = await self._is_deleted(entry)
        if not force:
            if deleted is False:
                raise PermanentError(
                    "still exists in the API server",
                    where=entry.with_uid,
                    hint="delete its pod: the kubelet then releases it; --force releases it while the pod may run",
                )
            await asyncio.to_thread(self._check_unused, entry)
        await self._do_release(entry)
        log.warning("claim released by an operator", extra={"claim": entry.uid, "forced": force})
        return {
            "uid": entry.uid,
            "namespace": entry.namespace,
            "name": entry.name,
            "devices": [device.device for device in entry.devices if device.request],
            "exists": None if deleted is None else not deleted,
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
                self._due = {uid: self._now() + RETRY_S for uid in self._due}

    def _choose_one(self) -> None:
        entries = self._ledger.entries()
        if entries:
            self._next_entry += 1
            self._due.setdefault(entries[self._next_entry % len(entries)].uid, self._now())

    async def check_due(self) -> None:
        """Check the claims whose time has come, and release those that were deleted."""
        entries = {entry.uid: entry for entry in self._ledger.entries()}
        for uid in [uid for uid, due in self._due.items() if due <= self._now()]:
            self._due.pop(uid, None)
            entry = entries.get(uid)
            if entry is None or not self._is_leader():
                self.deleted_since.pop(uid, None)
                continue
            await self._check(entry)

    async def _check(self, entry: LedgerEntry) -> None:
        deleted = await self._is_deleted(entry)
        if deleted is False:
            self.deleted_since.pop(entry.uid, None)
            return
        since = self.deleted_since.get(entry.uid)
        if deleted is None:
            # Unknown. A claim that was missing is checked again; others are not affected.
            if since is not None:
                self._due[entry.uid] = self._now() + RETRY_S
            return
        if since is None:
            self.deleted_since[entry.uid] = self._now()
            self._due[entry.uid] = self._now() + self._confirm_after_s
            log.warning(
                "prepared claim does not exist in the API server; it is checked again",
                extra={"claim": entry.uid, "claim_name": f"{entry.namespace}/{entry.name}"},
            )
            return
        if (remaining_s := since + self._confirm_after_s - self._now()) > 0:
            self._due[entry.uid] = self._now() + remaining_s
            return
        try:
            await asyncio.to_thread(self._check_unused, entry)
            await self._do_release(entry)
        except AgentError as error:
            self._due[entry.uid] = self._now() + RETRY_S
            if self._reported.get(entry.uid) != str(error):
                self._reported[entry.uid] = str(error)
                log.warning(
                    "claim that does not exist cannot be released; `dra-agent claim release` does it by hand",
                    extra={"claim": entry.uid, "reason": str(error)},
                )
            return
        self._reported.pop(entry.uid, None)
        devices = ", ".join(device.device for device in entry.devices if device.request)
        message = f"claim {entry.namespace}/{entry.name} (uid {entry.uid}) no longer exists: released {devices}"
        log.warning("claim that does not exist was released", extra={"claim": entry.uid, "devices": devices})
        self._events.record(CLAIM_GONE, ObjectReference.node(self._events.node), message)

    async def _do_release(self, entry: LedgerEntry) -> None:
        assert self._unprepare is not None
        await asyncio.to_thread(self._unprepare, entry.uid, Deadline.of(CALL_TIMEOUT_S))
        self.deleted_since.pop(entry.uid, None)

    async def _is_deleted(self, entry: LedgerEntry) -> bool | None:
        """Whether the API server has no such claim; None if unknown."""
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, entry.name, entry.namespace, timeout=GET_TIMEOUT_S)
        except NotFoundError as error:
            return True if error.is_of(entry.name) else None
        except AgentError:
            return None
        if self._claim_pods is not None:
            self._claim_pods.seen(claim)
        uid = claim.get("metadata", {}).get("uid")
        return uid != entry.uid if isinstance(uid, str) and uid else None

    def _check_unused(self, entry: LedgerEntry) -> None:
        """Raise RetryableError where a process has a device of the claim open, or that cannot be known."""
        deadline = Deadline.of(SEARCH_TIMEOUT_S)  # of all its devices: the operator's command waits for them
        functions: dict[tuple[str, str | None], Device] = {}  # partitions have the nodes of their device
        for held in entry.devices:
            device = self._devices.lookup(held.pool, held.device)
            if device is not None and not held.admin_access:
                functions[device.pci_address, device.identity.get("minor")] = device
        for device in functions.values():
            why = f"a device of it ({device.pci_address}) may be in use"
            require_unused(self._host, device_nodes(self._host, device), entry.with_uid, deadline, why)


class HolderCheckingPreparer:
    """A preparer that has holders checked."""

    def __init__(self, preparer: ClaimPreparer, orphaned: OrphanedClaims) -> None:
        self._preparer = preparer
        self._orphaned = orphaned

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        """Prepare a claim; DeviceHeldError has a hint how to release the holder."""
        try:
            return self._preparer.prepare(claim, deadline)
        except DeviceHeldError as error:
            holders = self._orphaned.holders(claim)
            if not holders:
                raise
            self._orphaned.suspect([entry.uid for entry in holders])
            raise DeviceHeldError(
                error.message,
                where=error.where,
                public=error.public,
                hint="if that claim no longer exists, the agent releases it automatically within minutes, or at once: "
                f"`dra-agent claim release {holders[0].uid}` on this node",
            ) from error

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        """Release a claim."""
        return self._preparer.unprepare(uid, deadline)
