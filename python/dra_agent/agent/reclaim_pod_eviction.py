"""Pods that the agent moves by itself off a node whose host is taken: put together from claims, pods and the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dra_agent.agent.config import Config
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.kinds import PODS
from dra_agent.reclaim.claim_pods import ClaimPodIndex
from dra_agent.reclaim.early_eviction import EarlyEvictor
from dra_agent.reclaim.evictor import Evictor
from dra_agent.reclaim.pod_actions import PodActions
from dra_agent.reclaim.release_tracker import ClaimSource, HeldClaim, ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
"""Seconds for reading a pod."""


class PodEviction:
    """From `start` to `stop`; only where `reclaim.evict` is not `taint`."""

    def __init__(
        self,
        config: Config,
        api: ApiClient,
        reclaim: ReclaimService,
        held: Callable[[], Sequence[HeldClaim]],
        claims: ClaimSource,
        *,
        active: Callable[[], bool],
    ) -> None:
        """`active`: whether this is the agent that acts, of several in a rolling update."""
        self._config = config
        self._reclaim = reclaim
        self._active = active
        self._loop = asyncio.get_running_loop()
        self._counted: Counter[tuple[str, str]] = Counter()
        self._mover = PodActions(PodApi(api), self._counted)
        self._consumers = ClaimPodIndex(held, claims, self._mover.pods)
        self._ahead = EarlyEvictor(
            self._consumers,
            self._mover,
            mode=config.reclaim.evict,
            node=config.node,
            driver=config.driver_name,
            active=active,
        )

    def start(self) -> None:
        """Begin to learn who uses the claims."""
        self._consumers.start()
        self._reclaim.on_change(self._changed)

    async def stop(self) -> None:
        """Learn no more."""
        await self._consumers.stop()

    def prepared(self, claim: dict[str, Any]) -> None:
        """A claim was prepared; on any thread."""
        metadata = claim["metadata"]
        name = (str(metadata.get("uid", "")), str(metadata.get("namespace", "")), str(metadata.get("name", "")))
        self._loop.call_soon_threadsafe(self._consumers.prepared, *name)

    def counts(self) -> dict[tuple[str, str], int]:
        """What was done, by action and result."""
        return dict(self._counted)

    def ahead(self, state: ReclaimState) -> Coroutine[Any, Any, None] | None:
        """See dra_agent.reclaim.early_eviction."""
        return self._ahead.of(state)

    async def evict(self, release: ReleaseTracker) -> None:
        """Move what the taint does not move, for one notice; ends only by being cancelled, or without the right."""
        evictor = Evictor(
            self._mover,
            release,
            lambda: self._reclaim.state,
            mode=self._config.reclaim.evict,
            node=self._config.node,
            driver=self._config.driver_name,
            active=self._active,
        )
        try:
            await evictor.run()
        except Exception:  # whatever goes wrong with a pod must not end the agent's other work unseen
            log.exception("pods that the taint does not move are not moved")

    async def _changed(self, before: ReclaimState, after: ReclaimState) -> None:
        if after.phase == "hint" != before.phase:
            self._consumers.refresh()


class PodApi:
    """See dra_agent.reclaim.pod_actions.Pods."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod."""
        return await self._api.get(PODS, name, namespace, timeout=CALL_TIMEOUT_S)

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        """Post an Eviction; its uid is a precondition."""
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
        """Delete it, with its uid as a precondition."""
        await self._api.delete(PODS, name, namespace, uid=uid, grace=grace)
