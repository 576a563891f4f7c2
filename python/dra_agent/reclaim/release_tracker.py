"""Tracks the release of each claim of a reclaimed node, in the ledger and in the API server.

A claim is *unprepared* when the kubelet has released it, *refused* when it was never prepared, and *released* when
its allocation on this node was removed, so that the scheduler can allocate it, or its pod's next one, elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dra_agent.api_object import consumers_of, is_pod, results_of
from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.inventory.model import is_pool_of
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import NotFoundError
from dra_agent.kube_client.kinds import RESOURCE_CLAIMS
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.status import ClaimReleaseStatus

if TYPE_CHECKING:
    from dra_agent.reclaim.node_status import NodeStatusWriter

POLL_INTERVAL_S = 0.25
"""Seconds between two reads of a claim that was unprepared a moment ago."""
RECHECK_INTERVAL_S = 2.0
"""Seconds between two reads of a claim that the kubelet has not released: its pods may have changed."""
FAST_POLL_S = 10.0
"""Seconds since its unprepare in which a claim is read every POLL_INTERVAL_S; then its controller does not act soon."""
READ_TIMEOUT_S = 5.0
MAX_CONCURRENCY = 4
"""Claims that are read at once: as many connections as the API client keeps."""


class ReleaseTracker:
    """The claims that were prepared when a notice came, or are found since. Lives on the event loop."""

    def __init__(
        self,
        ledger: JournalLedger,
        api: ApiClient,
        *,
        node: str,
        driver: str,
        node_status: NodeStatusWriter | None = None,
        now: Callable[[], datetime] = STEADY.now,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`node` is the prefix of this node's pools of `driver` ("node/gpu").

        `node_status` is notified of each read claim that was not created for one pod. `on_change` is called when a
        record was added, or whether a claim is unprepared was determined again.
        """
        self._ledger = ledger
        self._api = api
        self._node = node
        self._driver = driver
        self._node_status = node_status
        self._now = now
        self._on_change = on_change
        self._slots = asyncio.Semaphore(MAX_CONCURRENCY)
        self._wake = asyncio.Event()
        self._waits = 0
        """How many wait for changes of the ledger."""
        loop = asyncio.get_running_loop()

        def ledger_changed() -> None:
            # On the thread of each prepare and unprepare: waking the event loop delays their responses.
            if self._waits:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._wake.set)

        ledger.watch(ledger_changed)
        self.changed = asyncio.Event()
        """Set on every change of a record."""
        self.records: dict[str, ClaimReleaseStatus] = {}
        self.claims: dict[str, Mapping[str, Any]] = {}
        """Each claim as last read, by UID, without deleted or replaced claims."""

    def reset(self) -> None:
        """Forget all claims: another notice starts."""
        self.records, self.claims = {}, {}
        self._on_change()

    @property
    def unprepared(self) -> bool:
        """Whether the kubelet has released every claim."""
        return all(record.is_unprepared for record in self.records.values())

    @property
    def complete(self) -> bool:
        """Whether every claim can be allocated on another node."""
        return all(record.released is not None for record in self.records.values())

    def refused(self, uid: str, namespace: str, name: str) -> None:
        """Track a claim that is allocated here and was not prepared: its pod waits on this node."""
        now = self._now()
        self.records.setdefault(uid, ClaimReleaseStatus(uid, namespace, name, now, refused=now))
        self._wake.set()
        self.changed.set()
        self._on_change()

    async def wait_complete(self) -> None:
        """Return once every claim is released."""
        with self._woken_by_ledger():
            while True:
                self._wake.clear()
                self.compare_ledger()
                await self._read_due()
                if self.complete:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(POLL_INTERVAL_S, self._next_due_s())):
                        await self._wake.wait()

    async def wait_incomplete(self) -> None:
        """Return once a claim is not released: a prepare that ran when the notice came has ended."""
        with self._woken_by_ledger():
            while self.complete:
                # Another agent of a rolling update changes a shared ledger without waking this one.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RECHECK_INTERVAL_S):
                        await self._wake.wait()
                self._wake.clear()
                self.compare_ledger()

    @contextlib.contextmanager
    def _woken_by_ledger(self) -> Iterator[None]:
        """Be woken by changes of the ledger; the first wait ends at once, for those that came before."""
        self._waits += 1
        self._wake.set()
        try:
            yield
        finally:
            self._waits -= 1

    def compare_ledger(self) -> None:
        """Record which claims are new in the ledger, and which are not in it any more."""
        now = self._now()
        prepared = {claim.uid: claim for claim in self._ledger.entries()}
        for uid, claim in prepared.items():
            record = self.records.setdefault(uid, ClaimReleaseStatus(uid, claim.namespace, claim.name, now))
            record.unprepared = record.refused = record.released = None
        for uid, record in self.records.items():
            if uid not in prepared and not record.is_unprepared:
                record.unprepared = now
                record.requested_at = float("-inf")
        self.changed.set()
        self._on_change()

    async def _read_due(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [record for record in self.records.values() if record.released is None and self._due_at(record) <= now]
        for record in due:
            record.requested_at = now
        await asyncio.gather(*(self._read(record) for record in due))

    def _next_due_s(self) -> float:
        now = asyncio.get_running_loop().time()
        return min(self._due_at(record) - now for record in self.records.values() if record.released is None)

    def _due_at(self, record: ClaimReleaseStatus) -> float:
        since = record.unprepared
        soon = since is not None and (self._now() - since).total_seconds() < FAST_POLL_S and not record.unknown
        return record.requested_at + (POLL_INTERVAL_S if soon else RECHECK_INTERVAL_S)

    async def _read(self, record: ClaimReleaseStatus) -> None:
        try:
            async with self._slots:
                claim: Mapping[str, Any] | None = await self._api.get(
                    RESOURCE_CLAIMS, record.name, record.namespace, timeout=READ_TIMEOUT_S
                )
        except NotFoundError:
            claim = None
        except AgentError as error:
            record.unknown = str(error)
            return
        record.unknown = ""
        self.claims.pop(record.uid, None)
        if claim is not None and claim.get("metadata", {}).get("uid") == record.uid:
            self.claims[record.uid] = claim
            if self._node_status is not None and not is_created_for_pod(claim):
                self._node_status.named_claim()
        record.pods = _pods(claim)
        record.pods_gone = None if record.pods else record.pods_gone or self._now()
        if record.is_unprepared and not _allocated_here(claim, record.uid, self._driver, self._node):
            record.released = self._now()
            record.pods = ()
        self.changed.set()


def is_created_for_pod(claim: Mapping[str, Any]) -> bool:
    """Return whether a claim was created from a template, or for an extended resource: it is deleted with its pod.

    Any other claim can be reserved by the next pod that names it, or by the other pods of a group.
    """
    owners = claim.get("metadata", {}).get("ownerReferences") or []
    return any(owner.get("kind") == "Pod" and owner.get("controller") for owner in owners)


def _pods(claim: Mapping[str, Any] | None) -> tuple[str, ...]:
    return tuple(str(one.get("name", "")) for one in consumers_of(claim or {}) if is_pod(one))


def _allocated_here(claim: Mapping[str, Any] | None, uid: str, driver: str, node: str) -> bool:
    if claim is None or claim.get("metadata", {}).get("uid") != uid:
        return False
    return any(is_pool_of(result.get("pool"), node) for result in results_of(claim, driver))
