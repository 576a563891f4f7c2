"""Pods whose grace period is longer than what is left are asked to go before the taint asks them.

kube-controller-manager deletes the pods of tainted devices with their own grace period, and the kubelet does not
shorten one that has begun (measured with 1.37.1): such a pod would be there until its host is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any

from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.errors import NotFoundError
from dra_agent.reclaim.claim_pods import ClaimPod
from dra_agent.reclaim.eviction_policy import Decision, EvictionContext, Mode, decide
from dra_agent.reclaim.pod_actions import PodActions
from dra_agent.reclaim.state import ReclaimState

log = logging.getLogger(__name__)

MAX_CONCURRENCY = 8


class EarlyEvictor:
    """Acts at the begin of a notice."""

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
            # At the begin of a notice that is decided of nobody else but of what the taint overlooks.
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
                # Whoever looks at the claims of the notice tries again.
                extra = {"pod": f"{consumer.namespace}/{consumer.name}", "reason": str(error)}
                log.warning("the pod has a longer grace period than its host, and cannot be moved", extra=extra)

        await asyncio.gather(*(move(consumer, decision) for consumer, decision in urgent))
