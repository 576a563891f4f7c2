"""The two operations of the DRAPlugin service, prepare and unprepare: on the thread of a call, or on the event loop."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from dra_agent.api_object import Object
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, RetryableError
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor, ClaimSlot
from dra_agent.kubelet_plugin.claim_fetch import fetch, fetch_on_thread
from dra_agent.kubelet_plugin.interfaces import ClaimSource, PluginMetrics
from dra_agent.kubelet_plugin.proto import dra_v1_pb2 as messages
from dra_agent.prepare import ClaimPreparer

FETCH_SHARE = 0.75
"""How much of a call's time the API server may take; the rest is for the devices."""
MAX_ERROR_CHARS = 4096
"""Maximum length of an error; the kubelet puts it into an event of the pod."""

Result = Sequence[ClaimDevice] | AgentError


class PendingPreparer:
    """The preparer, which is known once the agent has started. Created on the event loop."""

    def __init__(self) -> None:
        self._future: asyncio.Future[ClaimPreparer] = asyncio.get_running_loop().create_future()

    @property
    def is_set(self) -> bool:
        """Whether the agent has started."""
        return self._future.done()

    def set(self, preparer: ClaimPreparer) -> None:
        """Set the preparer, once."""
        self._future.set_result(preparer)

    def get(self) -> ClaimPreparer:
        """Return the preparer if `is_set`."""
        return self._future.result()

    async def wait(self, deadline_s: float) -> ClaimPreparer:
        """Return the preparer; raises RetryableError if it is not set at `deadline_s`, in the loop's time."""
        if not self.is_set:
            remaining_s = deadline_s - asyncio.get_running_loop().time()
            await asyncio.wait({self._future}, timeout=max(0.0, remaining_s))
        if not self.is_set:
            raise RetryableError("the agent is still starting", hint="wait until /readyz returns 200")
        return self.get()


class Operation(ABC):
    """Prepare or unprepare; deadlines are in the loop's time, which is `time.monotonic`."""

    method: ClassVar[str]
    """The method of the service."""
    name: ClassVar[str]
    """What is done to the claim, for messages."""

    @abstractmethod
    def response(self, results: dict[str, Result]) -> Any:
        """Return the response to the kubelet."""

    @abstractmethod
    async def on_loop(self, claim: ClaimRef, deadline_s: float, tried: AgentError | None) -> Sequence[ClaimDevice]:
        """Work after earlier work of the claim; `tried` is the error of an earlier attempt to read the claim.

        Raises AgentError.
        """

    @abstractmethod
    def on_thread(self, claim: ClaimRef, deadline_s: float, slot: ClaimSlot) -> Sequence[ClaimDevice]:
        """Work on the calling thread, which holds `slot`.

        Raises:
            UnreadError: The claim cannot be read here; `on_loop` reads it.
            AgentError: It is not done.
        """


class Prepare(Operation):
    """Reads a claim from the API server, and prepares it."""

    method = "NodePrepareResources"
    name = "preparing"

    def __init__(
        self, claims: ClaimSource, executor: ClaimExecutor, preparer: PendingPreparer, metrics: PluginMetrics | None
    ) -> None:
        self._claims = claims
        self._executor = executor
        self._preparer = preparer
        self._metrics = metrics

    def response(self, results: dict[str, Result]) -> Any:
        """See Operation."""
        response = messages.NodePrepareResourcesResponse()
        for uid, result in results.items():
            if isinstance(result, AgentError):
                response.claims[uid].error = _text(result)
            else:
                response.claims[uid].devices.extend(_device(item) for item in result)
        return response

    async def on_loop(self, claim: ClaimRef, deadline_s: float, tried: AgentError | None) -> Sequence[ClaimDevice]:
        """See Operation."""
        began = time.perf_counter()
        fetched = await fetch(self._claims, claim, _fetch_deadline(deadline_s), tried=tried)
        self._observe_fetch(began)
        preparer = await self._preparer.wait(deadline_s)
        deadline = Deadline(deadline_s)
        return await self._executor.run(
            claim.uid, self.name, _key(fetched), lambda: preparer.prepare(fetched, deadline), deadline_s
        )

    def on_thread(self, claim: ClaimRef, deadline_s: float, slot: ClaimSlot) -> Sequence[ClaimDevice]:
        """See Operation."""
        began = time.perf_counter()
        fetched = fetch_on_thread(self._claims, claim, _fetch_deadline(deadline_s))
        self._observe_fetch(began)
        slot.joinable(_key(fetched))
        return self._preparer.get().prepare(fetched, Deadline(deadline_s))

    def _observe_fetch(self, began: float) -> None:
        if self._metrics is not None:
            self._metrics.observe_phase("fetch", time.perf_counter() - began)


class Unprepare(Operation):
    """Releases a claim."""

    method = "NodeUnprepareResources"
    name = "unpreparing"

    def __init__(self, executor: ClaimExecutor, preparer: PendingPreparer) -> None:
        self._executor = executor
        self._preparer = preparer

    def response(self, results: dict[str, Result]) -> Any:
        """See Operation."""
        response = messages.NodeUnprepareResourcesResponse()
        for uid, result in results.items():
            response.claims[uid].error = _text(result) if isinstance(result, AgentError) else ""
        return response

    async def on_loop(self, claim: ClaimRef, deadline_s: float, tried: AgentError | None) -> Sequence[ClaimDevice]:
        """See Operation."""
        preparer = await self._preparer.wait(deadline_s)
        deadline = Deadline(deadline_s)
        await self._executor.run(
            claim.uid, self.name, None, lambda: preparer.unprepare(claim.uid, deadline), deadline_s
        )
        return ()

    def on_thread(self, claim: ClaimRef, deadline_s: float, slot: ClaimSlot) -> Sequence[ClaimDevice]:
        """See Operation."""
        slot.joinable(None)
        self._preparer.get().unprepare(claim.uid, Deadline(deadline_s))
        return ()


def _fetch_deadline(deadline_s: float) -> float:
    return deadline_s - max(0.0, deadline_s - time.monotonic()) * (1 - FETCH_SHARE)


def _key(claim: Object) -> bytes:
    """Return what a call must have in common with one that it joins."""
    return msgspec.json.encode(claim["status"]["allocation"])


def _device(item: ClaimDevice) -> messages.Device:
    return messages.Device(
        request_names=item.requests,
        pool_name=item.pool,
        device_name=item.device,
        cdi_device_ids=item.cdi_device_ids,
        share_id=item.share_id,
    )


def _text(error: AgentError) -> str:
    """Return a message that fits into the pod's event; never "", which means success."""
    return (error.public_text or type(error).__name__)[:MAX_ERROR_CHARS]
