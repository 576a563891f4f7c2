"""Tracks the release of each claim of a reclaimed node, in the ledger and in the API server.

A claim is *unprepared* when the kubelet has released it, *refused* when it was never prepared, and *released* when
its allocation on this node was removed, so that the scheduler can allocate it, or its pod's next one, elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from dra_agent.claim import ClaimRef
from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.errors import NotFoundError
from dra_agent.reclaim.status import ClaimReleaseStatus

POLL_INTERVAL_S = 0.25
"""Seconds between two checks of the ledger."""
RECHECK_INTERVAL_S = 2.0
"""Seconds between two checks of a claim that the kubelet has not released: its pods may have changed."""
SOON_S = 10.0
"""Seconds after which an unprepared claim is checked at that interval too: its controller does not act."""
TIMEOUT_S = 5.0
MAX_CONCURRENCY = 4
"""Claims that are read at once: as many connections as the API client keeps."""


class ClaimSource(Protocol):
    """Reads claims; see dra_agent.kube_client."""

    async def claim(self, namespace: str, name: str, timeout: float) -> dict[str, Any]:
        """Get a ResourceClaim; raises NotFoundError."""


class ReleaseTracker:
    """The claims that were prepared when the notice came, or are found since. Lives on the event loop."""

    def __init__(
        self,
        held: Callable[[], Sequence[ClaimRef]],
        claims: ClaimSource,
        *,
        node: str,
        driver: str,
        named: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        """`held` gives the claims of the ledger; `node` names the pools of `driver` that are this node's ("node/gpu").

        `named` is called for each claim that was not made for one pod, once it was read.
        """
        self._held = held
        self._claims = claims
        self._node = node
        self._driver = driver
        self._named = named
        self._now = now
        self._slots = asyncio.Semaphore(MAX_CONCURRENCY)
        self.records: dict[str, ClaimReleaseStatus] = {}
        self.claims: dict[str, Mapping[str, Any]] = {}
        """Each claim as last read, by uid, without deleted or replaced claims."""

    @property
    def unprepared(self) -> bool:
        """Whether the kubelet has given every claim back."""
        return all(record.given_back for record in self.records.values())

    @property
    def complete(self) -> bool:
        """Whether every claim is free for another node."""
        return all(record.released is not None for record in self.records.values())

    def refused(self, uid: str, namespace: str, name: str) -> None:
        """Follow a claim that is allocated here, and was not prepared: its pod waits on this host."""
        now = self._now()
        self.records.setdefault(uid, ClaimReleaseStatus(uid, namespace, name, now, refused=now))

    async def watch(self) -> None:
        """Look until every claim is released."""
        while True:
            self.look()
            await self._ask()
            if self.complete:
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    def look(self) -> None:
        """Compare with the ledger: what is new in it, and what is there no more."""
        now = self._now()
        held = {claim.uid: claim for claim in self._held()}
        for uid, claim in held.items():
            record = self.records.setdefault(uid, ClaimReleaseStatus(uid, claim.namespace, claim.name, now))
            record.unprepared = record.refused = record.released = None
        for uid, record in self.records.items():
            if uid not in held and not record.given_back:
                record.unprepared = now
                record.looked = float("-inf")

    async def _ask(self) -> None:
        now, today = asyncio.get_running_loop().time(), self._now()
        due = []
        for record in self.records.values():
            back = record.unprepared
            soon = back is not None and (today - back).total_seconds() < SOON_S and not record.unknown
            pause = POLL_INTERVAL_S if soon else RECHECK_INTERVAL_S
            if record.released is None and now - record.looked >= pause:
                record.looked = now
                due.append(record)
        await asyncio.gather(*(self._ask_about(record) for record in due))

    async def _ask_about(self, record: ClaimReleaseStatus) -> None:
        try:
            async with self._slots:
                claim: Mapping[str, Any] | None = await self._claims.claim(record.namespace, record.name, TIMEOUT_S)
        except NotFoundError:
            claim = None
        except AgentError as error:
            record.unknown = str(error)
            return
        record.unknown = ""
        self.claims.pop(record.uid, None)
        if claim is not None and claim.get("metadata", {}).get("uid") == record.uid:
            self.claims[record.uid] = claim
            if not made_for_a_pod(claim):
                self._named()
        record.pods = _pods(claim)
        record.pods_gone = None if record.pods else record.pods_gone or self._now()
        if record.given_back and _elsewhere(claim, record.uid, self._driver, self._node):
            record.released = self._now()
            record.pods = ()


def made_for_a_pod(claim: Mapping[str, Any]) -> bool:
    """Whether a claim was made from a template, or for an extended resource: it goes with its pod.

    Any other one is there for the next pod that names it, or for the other pods of a group.
    """
    owners = claim.get("metadata", {}).get("ownerReferences") or []
    return any(owner.get("kind") == "Pod" and owner.get("controller") for owner in owners)


def _pods(claim: Mapping[str, Any] | None) -> tuple[str, ...]:
    reserved = ((claim or {}).get("status") or {}).get("reservedFor") or []
    return tuple(str(one.get("name", "")) for one in reserved if one.get("resource", "pods") == "pods")


def _elsewhere(claim: Mapping[str, Any] | None, uid: str, driver: str, node: str) -> bool:
    if claim is None or claim.get("metadata", {}).get("uid") != uid:
        return True
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        return True
    results = (allocation.get("devices") or {}).get("results") or []
    return not any(
        result.get("driver") == driver and str(result.get("pool", "")).startswith(f"{node}/") for result in results
    )
