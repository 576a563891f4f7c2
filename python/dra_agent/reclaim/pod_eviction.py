"""Pod eviction on a reclaimed node: before the taint (EarlyEvictor), and where the taint evicts nothing (Evictor).

kube-controller-manager deletes the pods of tainted devices with their own grace period, and the kubelet does not
shorten one that has started (measured with 1.37.1): a pod with a longer one would run until the node is terminated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any

from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.client import ApiClient
from dra_agent.kube_client.errors import NotFoundError
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.claim_pods import ClaimPod, ClaimPodIndex, PodClient
from dra_agent.reclaim.eviction_policy import Decision, EvictionContext, EvictionMode, decide
from dra_agent.reclaim.evictor import Evictor, PodActions
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState

log = logging.getLogger(__name__)

MAX_CONCURRENCY = 8
"""Maximum concurrent requests for pods."""


class EarlyEvictor:
    """Evicts pods at the start of a notice if their grace period is longer than the remaining time."""

    def __init__(
        self,
        pods: Iterable[ClaimPod],
        actions: PodActions,
        *,
        mode: EvictionMode,
        node: str,
        driver: str,
        is_leader: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        """`pods` yields the known pods of the claims. Without `is_leader` nothing is done."""
        self._pods = pods
        self._actions = actions
        self._mode = mode
        self._node = node
        self._driver = driver
        self._is_leader = is_leader
        self._now = now

    def evictions(self, state: ReclaimState) -> Coroutine[Any, Any, None] | None:
        """Return the evictions that must precede the taint; None if there are none, which is the usual case."""
        if state.noticed is None or state.deadline is None or not self._is_leader():
            return None
        pods = list(self._pods)
        context = EvictionContext(
            self._now(), state.noticed, state.deadline, self._node, self._driver, self._mode, len(pods)
        )
        urgent: dict[str, tuple[ClaimPod, Decision]] = {}
        for pod in pods:
            decision = decide(pod.pod, pod.claim, context)
            # At the start of a notice this applies only to pods that the taint does not evict in time.
            if decision.act in ("evict", "delete") and decision.grace is not None:
                urgent[pod.uid] = (pod, decision)
        return self._evict(list(urgent.values())) if urgent else None

    async def _evict(self, urgent: list[tuple[ClaimPod, Decision]]) -> None:
        slots = asyncio.Semaphore(MAX_CONCURRENCY)

        async def evict(pod: ClaimPod, decision: Decision) -> None:
            try:
                async with slots:
                    await self._actions.apply(pod.namespace, pod.name, pod.uid, decision)
            except NotFoundError:
                pass
            except AgentError as error:
                # The evictor of the notice retries.
                extra = {"pod": f"{pod.namespace}/{pod.name}", "reason": str(error)}
                log.warning(
                    "failed to evict a pod with a grace period longer than the remaining time of the node", extra=extra
                )

        await asyncio.gather(*(evict(pod, decision) for pod, decision in urgent))


class PodEviction:
    """Pod eviction of one node, from `start` to `stop`; only if `reclaim.evict` is not `taint`."""

    def __init__(
        self,
        api: ApiClient,
        reclaim: ReclaimService,
        ledger: JournalLedger,
        *,
        mode: EvictionMode,
        node: str,
        driver: str,
        is_leader: Callable[[], bool],
    ) -> None:
        """`is_leader`: whether this agent acts, of several in a rolling update."""
        self._reclaim = reclaim
        self._mode: EvictionMode = mode
        self._node = node
        self._driver = driver
        self._is_leader = is_leader
        self._loop = asyncio.get_running_loop()
        self._counts: Counter[tuple[str, str]] = Counter()
        pods = PodClient(api)
        self._actions = PodActions(pods, self._counts)
        self._pods = ClaimPodIndex(ledger, api, pods, urgent=lambda: reclaim.state.phase == "notice")
        self._early = EarlyEvictor(self._pods, self._actions, mode=mode, node=node, driver=driver, is_leader=is_leader)

    def start(self) -> None:
        """Start to read the pods of the claims."""
        self._pods.start()
        self._reclaim.on_change(self._changed)

    async def stop(self) -> None:
        """Stop reading."""
        await self._pods.stop()

    def prepared(self, claim: dict[str, Any]) -> None:
        """Read the pods of a claim that was prepared. Safe on any thread; returns at once."""
        metadata = claim["metadata"]
        names = (str(metadata.get("uid", "")), str(metadata.get("namespace", "")), str(metadata.get("name", "")))
        self._loop.call_soon_threadsafe(self._pods.prepared, *names)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of evictions and deletions by action and result."""
        return dict(self._counts)

    def early_evictions(self, state: ReclaimState) -> Coroutine[Any, Any, None] | None:
        """Return the evictions that must precede the taint; None if there are none."""
        return self._early.evictions(state)

    async def evict(self, claims: ReleaseTracker) -> None:
        """Evict pods that the taint does not evict, for one notice. Ends on cancellation or a missing permission."""
        evictor = Evictor(
            self._actions,
            claims,
            self._reclaim,
            mode=self._mode,
            node=self._node,
            driver=self._driver,
            is_leader=self._is_leader,
        )
        await evictor.run()

    async def _changed(self, before: ReclaimState, after: ReclaimState) -> None:
        if after.phase == "hint" != before.phase:
            self._pods.refresh()
