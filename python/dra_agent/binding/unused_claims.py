"""Releases claims that were prepared ahead and are not allocated to their devices any more.

The kubelet never had them, so it releases none. The scheduler deallocates a claim when it gives up waiting, and a
controller does when its pod is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dra_agent.binding.nominated_pods import ClaimName
from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import NotFoundError
from dra_agent.kube_client.kinds import RESOURCE_CLAIMS
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ahead import prepared_ahead
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.status.device_status import DeviceKey, allocated
from dra_agent.supervisor import on_thread

log = logging.getLogger(__name__)

GET_TIMEOUT_S = 10.0


class UnusedClaims:
    """Lives on the event loop."""

    def __init__(
        self,
        api: ApiClient,
        ledger: JournalLedger,
        preparer: ClaimPreparer,
        *,
        driver: str,
        lock_of: Callable[[ClaimName], asyncio.Lock],
        is_leader: Callable[[], bool],
        interval_s: float,
    ) -> None:
        """`preparer` releases only claims that were prepared ahead. `lock_of` returns the lock of a claim.

        The lock is held from the read of a claim to its release: a claim that is allocated again in between would
        otherwise lose what has just been prepared for it.
        """
        self._api = api
        self._ledger = ledger
        self._preparer = preparer
        self._driver = driver
        self._lock_of = lock_of
        self._is_leader = is_leader
        self._interval_s = interval_s

    async def run(self) -> None:
        """Compare the claims with the API server at intervals."""
        while True:
            if self._is_leader():
                for entry in prepared_ahead(self._ledger):
                    lock = self._lock_of(ClaimName(entry.namespace, entry.name))
                    if lock.locked():
                        continue  # it is being prepared
                    try:
                        async with lock:
                            await self.compare(entry)
                    except Exception:  # a defect with one claim must not hold the others
                        log.exception("claim that was prepared ahead not compared", extra={"claim": entry.uid})
            await asyncio.sleep(self._interval_s)

    async def compare(self, entry: LedgerEntry) -> None:
        """Release a claim unless it is allocated to its devices, or that is not known."""
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, entry.name, entry.namespace, timeout=GET_TIMEOUT_S)
            if (claim.get("metadata") or {}).get("uid") == entry.uid:
                held = {DeviceKey(item.pool, item.device, item.share_id) for item in entry.devices if item.request}
                if held <= allocated(claim, self._driver):
                    return
        except NotFoundError as error:
            if not error.is_of(entry.name):
                return
        except AgentError:
            return
        try:
            await on_thread(self._preparer.unprepare, entry.uid, Deadline.of(CALL_TIMEOUT_S))
        except AgentError as error:
            log.warning("claim not released yet", extra={"claim": entry.uid, "reason": str(error)})
        else:
            log.info("claim that was prepared ahead is not used", extra={"claim": entry.uid})
