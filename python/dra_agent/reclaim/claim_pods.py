"""The pods that use the node's claims, read before any notice: at a notice there is no time to.

A claim's pods are read once, when it has been prepared: their grace periods never change. Pods that join a shared claim
later cause no call of the kubelet; they are found at the next hint, or when the agent reads the claims of a
notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dra_agent.claim import ClaimRef
from dra_agent.errors import AgentError
from dra_agent.kube_client.errors import ForbiddenError, NotFoundError
from dra_agent.reclaim.evictor import PodClient
from dra_agent.reclaim.release_tracker import ClaimSource
from dra_agent.retry import Backoff

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Seconds for reading a claim."""
MAX_TRIES = 5


class ClaimPod(msgspec.Struct, frozen=True):
    """A pod for which a claim is reserved, and the claim at that time."""

    namespace: str
    name: str
    uid: str
    pod: Mapping[str, Any]
    claim: Mapping[str, Any]


class ClaimPodIndex:
    """From `start` to `stop`. Lives on the event loop."""

    def __init__(self, held: Callable[[], Sequence[ClaimRef]], claims: ClaimSource, pods: PodClient) -> None:
        """`held` gives the claims of the ledger."""
        self._held = held
        self._claims = claims
        self._pods = pods
        self._known: dict[str, list[ClaimPod]] = {}
        self._queue: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read every prepared claim."""
        self._task = asyncio.create_task(self._run(), name="reclaim consumers")
        self.refresh()

    async def stop(self) -> None:
        """Stop reading."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def refresh(self) -> None:
        """Read every claim that is held once more: the node may be taken soon."""
        for claim in self._held():
            self.prepared(claim.uid, claim.namespace, claim.name)

    def prepared(self, uid: str, namespace: str, name: str) -> None:
        """Read the pods of a claim that was prepared."""
        self._queue.put_nowait((uid, namespace, name))

    def __iter__(self) -> Iterator[ClaimPod]:
        """Give the pods of the claims that are held now, as far as they are known."""
        held = {claim.uid for claim in self._held()}
        self._known = {uid: found for uid, found in self._known.items() if uid in held}
        for found in self._known.values():
            yield from found

    async def _run(self) -> None:
        while True:
            uid, namespace, name = await self._queue.get()
            try:
                await self._learn_patiently(uid, namespace, name)
            except ForbiddenError as error:
                hint = "grant it: podEviction of the chart"
                log.warning("grace periods of pods are not known", extra={"reason": str(error), "todo": hint})
                return

    async def _learn_patiently(self, uid: str, namespace: str, name: str) -> None:
        backoff = Backoff(first=0.5, longest=10.0)
        for _ in range(MAX_TRIES):
            try:
                self._known[uid] = [found async for found in self._learn(uid, namespace, name)]
            except (ForbiddenError, NotFoundError) as error:
                if isinstance(error, ForbiddenError):
                    raise
            except AgentError as error:
                await asyncio.sleep(backoff.delay(error))
                continue
            return

    async def _learn(self, uid: str, namespace: str, name: str) -> Any:
        claim = await self._claims.claim(namespace, name, TIMEOUT_S)
        if claim.get("metadata", {}).get("uid") != uid:
            return
        for consumer in _pods_of(claim):
            pod = await self._pods.get(namespace, consumer["name"])
            if pod.get("metadata", {}).get("uid") == consumer["uid"]:
                yield ClaimPod(namespace, consumer["name"], consumer["uid"], pod, claim)


def _pods_of(claim: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    for one in (claim.get("status") or {}).get("reservedFor") or []:
        if one.get("resource") == "pods" and not one.get("apiGroup"):
            yield {"name": str(one.get("name", "")), "uid": str(one.get("uid", ""))}
