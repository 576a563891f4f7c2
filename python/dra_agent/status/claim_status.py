"""Keeps `status.devices` of claims that are prepared here: written by server-side apply, after the fact, by one task.

The field manager is the driver's own, so that entries and fields of others are never touched. A claim that was deleted,
replaced or allocated again is not written: the API server removes the entries of deallocated devices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from dra_agent.api_object import Object
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.network_data import network_data
from dra_agent.kube_client import RESOURCE_CLAIMS, ApiClient, NotFoundError
from dra_agent.retry import Backoff
from dra_agent.status.device_status import (
    DeviceKey,
    NodeDevices,
    PreparedClaim,
    allocated,
    device_condition,
    entry,
    is_up_to_date,
    keep_transition,
    own_entries,
)
from dra_agent.status.permission import RETRY_AFTER_S, PermissionMonitor, lacks_permission
from dra_agent.supervisor import on_thread, supervisor

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.5
"""Seconds between prepare and the status write: the kubelet's requests go first, and short claims are skipped."""
MAX_PENDING_CLAIMS = 1024
"""Maximum pending claims; no node has more in normal operation."""
REQUEST_TIMEOUT_S = 10.0
_GRANT = "patch on resourceclaims/status, and associated-node:patch on resourceclaims/driver named after the driver"


class ClaimStatusWriter:
    """Writes the status of prepared claims. All methods except start and stop are thread-safe."""

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        devices: NodeDevices,
        *,
        addresses: Callable[[str, str], Sequence[str]] = lambda interface, hardware_address: (),
        families: frozenset[str] | None = None,
        debounce_s: float = DEBOUNCE_S,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        """`addresses` returns the addresses of an interface (name, hardware address) in CIDR notation, on a thread.

        Of `families` only these are written, of None every one; a claim without such a device costs no request.
        """
        self._api = api
        self._driver = driver
        self._devices = devices
        self._addresses = addresses
        self._families = families
        self._debounce_s = debounce_s
        self._permission = PermissionMonitor("claim status is not written", _GRANT, retry_after_s=retry_after_s)
        self._backoff = Backoff()
        self._claims: dict[str, PreparedClaim] = {}
        self._due: dict[str, float] = {}
        self._written: dict[str, list[Object]] = {}
        self._reported: set[str] = set()
        """Claims that were passed to the event loop and are not released, by uid."""
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._overflowed = False
        self.written = 0
        """Number of status writes since the start."""
        self.failed = 0
        """Tries to write a claim's status that failed since the start."""

    @property
    def waiting(self) -> int:
        """Number of claims with a pending status write."""
        return len(self._due)

    @property
    def problem(self) -> str:
        """Why nothing can be written; empty where that is not known."""
        return self._permission.missing

    def start(self, prepared: Iterable[PreparedClaim] = ()) -> None:
        """Start, with the claims of an earlier run."""
        for claim in prepared:
            if (selected := self._selected(claim)) is not None:
                self._reported.add(claim.uid)
                self._add(selected)
        self._task = supervisor().loop("claim status", self._run)

    async def stop(self) -> None:
        """Stop; pending writes are made after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def prepared(self, claim: PreparedClaim) -> None:
        """Schedule a status write.

        The event loop is woken only if there is one: it would delay the response to the kubelet.
        """
        selected = self._selected(claim)
        # What is written of a claim that was released may still be there.
        if selected is not None and not (claim.uid in self._reported and self._is_written(selected)):
            self._reported.add(claim.uid)
            self._loop.call_soon_threadsafe(self._add, selected)

    def released(self, uid: str) -> None:
        """Remove a claim that this node no longer holds."""
        if uid in self._reported:
            self._reported.discard(uid)
            self._loop.call_soon_threadsafe(self._drop, uid)

    def changed(self) -> None:
        """Check all prepared claims again: devices or their health have changed."""
        self._loop.call_soon_threadsafe(self._recheck)

    def _selected(self, claim: PreparedClaim) -> PreparedClaim | None:
        """Return the claim with the devices whose status is written; None without any."""
        if self._families is None:
            return claim
        devices = tuple(key for key in claim.devices if key.pool.rpartition("/")[2] in self._families)
        return PreparedClaim(claim.uid, claim.namespace, claim.name, devices) if devices else None

    def _is_written(self, claim: PreparedClaim) -> bool:
        return self._claims.get(claim.uid) == claim and claim.uid in self._written

    def _add(self, claim: PreparedClaim) -> None:
        if not self._is_written(claim):
            self._claims[claim.uid] = claim
            self._enqueue(claim.uid)

    def _enqueue(self, uid: str) -> None:
        if uid not in self._due and len(self._due) >= MAX_PENDING_CLAIMS:
            if not self._overflowed:
                log.error("claim status is not written for every claim", extra={"waiting": MAX_PENDING_CLAIMS})
            self._overflowed = True
            self._claims.pop(uid, None)
            return
        self._due.setdefault(uid, self._loop.time() + self._debounce_s)
        self._woken.set()

    def _drop(self, uid: str) -> None:
        self._claims.pop(uid, None)
        self._due.pop(uid, None)
        self._written.pop(uid, None)

    def _recheck(self) -> None:
        for uid in list(self._claims):
            self._enqueue_if_changed(uid)

    def _enqueue_if_changed(self, uid: str) -> None:
        entries = self._written.get(uid)
        if entries is None:
            return  # still pending
        conditions = {_key(one): _condition(one) for one in entries}
        keys = self._claims[uid].devices
        now = {key: device_condition(self._devices.lookup(key.pool, key.device)) for key in keys}
        if any(key in conditions and conditions[key] != verdict[:2] for key, verdict in now.items()):
            self._enqueue(uid)

    async def _run(self) -> None:
        while True:
            while not self._due:  # a claim that was added may have been released before this task runs
                self._woken.clear()
                self._overflowed = False
                await self._woken.wait()
            uid, due = min(self._due.items(), key=lambda item: item[1])
            if (wait := due - self._loop.time()) > 0:
                await asyncio.sleep(wait)
                continue  # it may have been released since
            await self._try(uid)

    async def _try(self, uid: str) -> None:
        del self._due[uid]  # later changes schedule another write
        claim = self._claims[uid]
        pause = 0.0
        try:
            if not await self._write(claim):
                self._drop(uid)
            self._backoff.reset()
        except NotFoundError:
            self._drop(uid)
        except RetryableError as error:
            self.failed += 1
            pause = self._backoff.delay(error)
            log.debug("claim status not written yet", extra={"claim": uid, "reason": str(error)})
        except PermanentError as error:
            self.failed += 1
            if lacks_permission(error):
                pause = self._permission.refused(error)
            else:
                log.warning("claim status refused", extra={"claim": uid, "reason": str(error)})
                self._drop(uid)
        except Exception:  # a defect must not end the reporting
            log.exception("claim status not written", extra={"claim": uid})
            self._drop(uid)
        if pause:
            if uid in self._claims:
                self._due[uid] = self._loop.time() + pause
            await asyncio.sleep(pause)

    async def _write(self, prepared: PreparedClaim) -> bool:
        """Write the changes; return False if the claim was replaced."""
        claim = await self._api.get(RESOURCE_CLAIMS, prepared.name, prepared.namespace, timeout=REQUEST_TIMEOUT_S)
        if (claim.get("metadata") or {}).get("uid") != prepared.uid:
            return False
        allocated_keys = allocated(claim, self._driver)
        devices = [key for key in prepared.devices if key in allocated_keys]
        if not devices:
            return False
        recorded = own_entries(claim, self._driver)
        entries = [keep_transition(one, recorded.get(_key(one))) for one in await self._entries(devices)]
        last_written = self._written.get(prepared.uid)
        if all(is_up_to_date(recorded.get(_key(one)), one) for one in entries) and last_written in (None, entries):
            self._note(prepared, entries)
            return True
        stored = await self._api.apply(
            RESOURCE_CLAIMS,
            prepared.name,
            {
                # The uid is a precondition: a claim of the same name is not this one.
                "metadata": {"name": prepared.name, "namespace": prepared.namespace, "uid": prepared.uid},
                "status": {"devices": entries},
            },
            prepared.namespace,
            field_manager=self._driver,
            subresource="status",
        )
        self._permission.granted()
        self.written += 1
        kept = own_entries(stored, self._driver)
        if any(key not in kept for key in devices):
            raise PermanentError(
                "the API server dropped status.devices",
                where=f"claim {prepared.namespace}/{prepared.name}",
                hint="enable its feature gate DRAResourceClaimDeviceStatus, or set claim_status to off",
            )
        self._note(prepared, entries)
        return True

    def _note(self, prepared: PreparedClaim, entries: list[Object]) -> None:
        if prepared.uid in self._claims:  # else it was released since
            self._written[prepared.uid] = entries
            self._enqueue_if_changed(prepared.uid)  # while it was written

    async def _entries(self, keys: Sequence[DeviceKey]) -> list[Object]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: TID251 - lastTransitionTime of a condition
        entries = []
        for key in keys:
            device = self._devices.lookup(key.pool, key.device)
            network = network_data(device) if device is not None else {}
            ips: Sequence[str] = ()
            if len(network) == 2:  # interface and hardware address
                ips = await on_thread(self._addresses, network["interfaceName"], network["hardwareAddress"])
            entries.append(entry(self._driver, key, device, device_condition(device), ips, now))
        return entries


def _key(one: Object) -> DeviceKey:
    return DeviceKey(one["pool"], one["device"], one.get("shareID"))


def _condition(one: Object) -> tuple[str, str]:
    (condition,) = one["conditions"]
    return condition["status"], condition["reason"]
