"""Pod eviction on a reclaimed node: before the taint (EarlyEvictor), and where the taint evicts nothing (Evictor).

kube-controller-manager deletes the pods of tainted devices with their own grace period, and the kubelet does not
shorten one that has started (measured with 1.37.1): a pod with a longer one would run until the node is terminated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any

from dra_agent.claim import ClaimRef
from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import NotFoundError
from dra_agent.kube_client.kinds import PODS
from dra_agent.reclaim.claim_pods import ClaimPod, ClaimPodIndex
from dra_agent.reclaim.eviction_policy import Decision, EvictionContext, Mode, decide
from dra_agent.reclaim.evictor import Evictor, PodActions
from dra_agent.reclaim.release_tracker import ClaimSource, ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState

log = logging.getLogger(__name__)

MAX_CONCURRENCY = 8


class EarlyEvictor:
    """Evicts pods at the start of a notice."""

    def __init__(
        self,
        consumers: Iterable[ClaimPod],
        mover: PodActions,
        *,
        mode: Mode,
        node: str,
        driver: str,
        active: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        """`consumers` gives the pods that are known; nothing is done where it is not `active`."""
        self._consumers = consumers
        self._mover = mover
        self._mode = mode
        self._node = node
        self._driver = driver
        self._active = active
        self._now = now

    def of(self, state: ReclaimState) -> Coroutine[Any, Any, None] | None:
        """Give what is to be done before anything is tainted; None where that is nothing, which is the usual case."""
        if state.noticed is None or state.deadline is None or not self._active():
            return None
        moment = EvictionContext(self._now(), state.noticed, state.deadline, self._node, self._driver, self._mode)
        urgent: dict[str, tuple[ClaimPod, Decision]] = {}
        for consumer in self._consumers:
            decision = decide(consumer.pod, consumer.claim, moment)
            # At the start of a notice this applies only to pods that the taint does not evict in time.
            if decision.act in ("evict", "delete") and decision.grace is not None:
                urgent[consumer.uid] = (consumer, decision)
        return self._move(list(urgent.values())) if urgent else None

    async def _move(self, urgent: list[tuple[ClaimPod, Decision]]) -> None:
        slots = asyncio.Semaphore(MAX_CONCURRENCY)

        async def move(consumer: ClaimPod, decision: Decision) -> None:
            try:
                async with slots:
                    await self._mover.move(consumer.namespace, consumer.name, consumer.uid, decision)
            except NotFoundError:
                pass
            except AgentError as error:
                # The evictor of the notice retries.
                extra = {"pod": f"{consumer.namespace}/{consumer.name}", "reason": str(error)}
                log.warning("the pod has a longer grace period than its host, and cannot be moved", extra=extra)

        await asyncio.gather(*(move(consumer, decision) for consumer, decision in urgent))


CALL_TIMEOUT_S = 5.0
"""Seconds for reading a pod."""


class PodEviction:
    """From `start` to `stop`; only where `reclaim.evict` is not `taint`."""

    def __init__(
        self,
        api: ApiClient,
        reclaim: ReclaimService,
        held: Callable[[], Sequence[ClaimRef]],
        claims: ClaimSource,
        *,
        mode: Mode,
        node: str,
        driver: str,
        active: Callable[[], bool],
    ) -> None:
        """`active`: whether this is the agent that acts, of several in a rolling update."""
        self._mode: Mode = mode
        self._node = node
        self._driver = driver
        self._reclaim = reclaim
        self._active = active
        self._loop = asyncio.get_running_loop()
        self._counted: Counter[tuple[str, str]] = Counter()
        self._mover = PodActions(PodApi(api), self._counted)
        self._consumers = ClaimPodIndex(held, claims, self._mover.pods)
        self._ahead = EarlyEvictor(
            self._consumers,
            self._mover,
            mode=mode,
            node=node,
            driver=driver,
            active=active,
        )

    def start(self) -> None:
        """Start to read the pods of the claims."""
        self._consumers.start()
        self._reclaim.on_change(self._changed)

    async def stop(self) -> None:
        """Stop reading."""
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
        """See dra_agent.reclaim.pod_eviction."""
        return self._ahead.of(state)

    async def evict(self, release: ReleaseTracker) -> None:
        """Move what the taint does not move, for one notice; ends only by being cancelled, or without the right."""
        evictor = Evictor(
            self._mover,
            release,
            lambda: self._reclaim.state,
            mode=self._mode,
            node=self._node,
            driver=self._driver,
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
    """See dra_agent.reclaim.evictor.PodClient."""

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
