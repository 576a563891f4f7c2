"""The pods that use the claims of the node. They are read before any notice: after one there is not enough time.

The pods of a claim are read once, when it has been prepared: their grace periods never change. Pods that join a shared
claim later cause no call of the kubelet; they are found at the next hint, or when the agent reads the claims of a
notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import msgspec

from dra_agent.api_object import consumers_of, is_pod
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import ForbiddenError, NotFoundError
from dra_agent.kube_client.kinds import PODS, RESOURCE_CLAIMS
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reconcile_loop import reconcile
from dra_agent.retry import Backoff
from dra_agent.status.permission import PermissionMonitor
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

CLAIM_TIMEOUT_S = 10.0
POD_TIMEOUT_S = 5.0
MAX_ATTEMPTS = 5


class ClaimPod(msgspec.Struct, frozen=True):
    """A pod for which a claim is reserved, and the claim at that time."""

    namespace: str
    name: str
    uid: str
    pod: Mapping[str, Any]
    claim: Mapping[str, Any]


class PodClient:
    """The pods of the API server. Raises the errors of dra_agent.kube_client."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod."""
        return await self._api.get(PODS, name, namespace, timeout=POD_TIMEOUT_S)

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        """Create an Eviction of the pod with this UID.

        `grace` is the grace period in seconds; None: that of the pod.

        Raises:
            ThrottledError: a PodDisruptionBudget does not allow it.
        """
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        await self._api.create(PODS, eviction, namespace, subresource="eviction")

    async def delete(self, namespace: str, name: str, uid: str, grace: int) -> None:
        """Delete the pod with this UID, with a grace period in seconds."""
        await self._api.delete(PODS, name, namespace, uid=uid, grace=grace)


class ClaimPodIndex:
    """Pods of the claims that are in the ledger, read from `start` to `stop`. Lives on the event loop."""

    def __init__(
        self,
        ledger: JournalLedger,
        api: ApiClient,
        pods: PodClient,
        *,
        urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`urgent` as in Backoff."""
        self._ledger = ledger
        self._urgent = urgent
        self._api = api
        self._pods = pods
        self._known: dict[str, list[ClaimPod]] = {}
        self._unread: dict[str, tuple[str, str]] = {}
        """Namespace and name of claims whose pods are to be read, by UID."""
        self._changed = asyncio.Event()
        self._permission = PermissionMonitor("grace periods of pods are not known", "podEviction of the chart")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read the pods of every prepared claim."""
        self._task = supervisor().loop("reclaim consumers", self._run)
        self.refresh()

    async def stop(self) -> None:
        """Stop reading."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def refresh(self) -> None:
        """Read the pods of every claim of the ledger again."""
        for claim in self._ledger.entries():
            self.prepared(claim.uid, claim.namespace, claim.name)

    def prepared(self, uid: str, namespace: str, name: str) -> None:
        """Read the pods of a claim that was prepared; returns at once."""
        self._unread[uid] = (namespace, name)
        self._changed.set()

    def __iter__(self) -> Iterator[ClaimPod]:
        """Yield the known pods of the claims that are in the ledger now."""
        prepared = {claim.uid for claim in self._ledger.entries()}
        self._known = {uid: found for uid, found in self._known.items() if uid in prepared}
        for found in self._known.values():
            yield from found

    async def _run(self) -> None:
        await reconcile(self._changed, self._read_unread, Backoff())

    async def _read_unread(self, _: Backoff) -> float | None:
        """Read the pods of the claims that are unread; return the seconds to the next attempt if that is forbidden."""
        while self._unread:
            uid, (namespace, name) = next(iter(self._unread.items()))
            del self._unread[uid]  # it may be prepared again meanwhile
            try:
                if await self._read_with_retries(uid, namespace, name):
                    self._permission.granted()
            except ForbiddenError as error:
                prepared = {claim.uid for claim in self._ledger.entries()}
                # Last: one claim alone can be refused (the Node authorizer, for a claim whose pod is gone).
                unread = self._unread | {uid: (namespace, name)}
                self._unread = {uid: place for uid, place in unread.items() if uid in prepared}
                return self._permission.refused(error)
        return None

    async def _read_with_retries(self, uid: str, namespace: str, name: str) -> bool:
        """Return whether the claim and its pods were read. Raises ForbiddenError."""
        backoff = Backoff(first=0.5, longest=10.0, urgent=self._urgent)
        for _ in range(MAX_ATTEMPTS):
            try:
                self._known[uid] = [found async for found in self._read(uid, namespace, name)]
            except ForbiddenError:
                raise
            except NotFoundError:
                return False
            except AgentError as error:
                await asyncio.sleep(backoff.delay(error))
            else:
                return True
        return False

    async def _read(self, uid: str, namespace: str, name: str) -> AsyncIterator[ClaimPod]:
        claim = await self._api.get(RESOURCE_CLAIMS, name, namespace, timeout=CLAIM_TIMEOUT_S)
        if claim.get("metadata", {}).get("uid") != uid:
            return
        for consumer in filter(is_pod, consumers_of(claim)):
            pod_name, pod_uid = str(consumer.get("name", "")), str(consumer.get("uid", ""))
            pod = await self._pods.get(namespace, pod_name)
            if pod.get("metadata", {}).get("uid") == pod_uid:
                yield ClaimPod(namespace, pod_name, pod_uid, pod, claim)
