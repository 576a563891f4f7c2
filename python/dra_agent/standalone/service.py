"""Standalone mode as one running part: store, queue, socket, and the loop that allocates and prepares claims.

Allocating happens on one worker thread, preparing and releasing on one for each claim: the event loop never waits for a
disk or a vendor library, and no claim waits for another claim's device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from dra_agent.api_object import DEFAULT_NAMESPACE, Object
from dra_agent.control_socket.server import Server
from dra_agent.errors import AgentError, BusyError, PermanentError, UsageError
from dra_agent.health.published_health import unusable_reason
from dra_agent.inventory.model import Device
from dra_agent.prepare import ClaimPreparer
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.claim import ApplyResult, ClaimView
from dra_agent.standalone.claim_workers import ClaimWorkers
from dra_agent.standalone.intake import VALIDATION_TIMEOUT_S, Validator
from dra_agent.standalone.protocol import (
    MAX_LINE_BYTES,
    SOCKET,
    Apply,
    Delete,
    Get,
    ListClaims,
    ListClasses,
    ReleaseRun,
    State,
    decode_request,
)
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store
from dra_agent.standalone.stored_form import CLAIM, CLASS

log = logging.getLogger(__name__)

MAX_WAIT_S = 3600.0
START_TIMEOUT_S = 5.0
"""Seconds to restore claims before the agent listens; one that hangs continues in the background."""
STEP_BUDGET_S = 0.2
"""After that a step defers the rest to the next one, so that other work of the queue runs in between."""
FAILED_STEP_RETRY_S = 5.0
"""Seconds until the step after one that failed, as while the store cannot be read or written."""
FIRST_TRY_S = 5.0
"""Seconds that a response waits for the first attempt of its claims; thousands of earlier claims take longer."""
RESPOND_AFTER_S = 45.0
"""Seconds from a request to its response, for validation and for claims to be prepared or released; a `wait` of the
request comes on top. The command line waits a minute."""
STOP_AFTER_S = 5.0
"""How long a stop waits for running work. Work that hangs continues at the next start."""
SUSPEND_TIMEOUT_S = 5.0
"""Seconds that `suspend` waits for running work: the shortest notice of a cloud is 30 s."""
MAX_OBJECTS_PER_APPLY = 25_000
_T = TypeVar("_T")


class NodeDevices(Protocol):
    """The devices of this node. A protocol because the agent, which has them, is a layer above."""

    def slices(self) -> list[Object]:
        """Return the current ResourceSlices."""

    def lookup(self, pool: str, name: str) -> Device | None:
        """Return a device; None if it is not on this host now."""


class StandaloneService:
    """The API server's, the scheduler's and the kubelet's place on a host without Kubernetes."""

    def __init__(
        self,
        state_dir: Path,
        *,
        node: str,
        driver: str,
        devices: NodeDevices,
        preparer: ClaimPreparer,
        allocator: ClusterAllocator,
        validate: Callable[[Object], list[str]],
    ) -> None:
        """`validate` returns the errors of an object."""
        self._devices = devices
        self.socket = state_dir / SOCKET
        self.store = Store(state_dir)
        self._node = node
        self._driver = driver
        self._validator = Validator(validate)
        self._wake = asyncio.Event()
        self._workers = ClaimWorkers(self._wake.set)
        self.queue = ClaimQueue(
            self.store,
            node=node,
            slices=devices.slices,
            allocator=allocator,
            preparer=preparer,
            clock=time.monotonic,
            workers=self._workers,
        )
        self._server = Server(self.socket, self._handle, line_limit=MAX_LINE_BYTES)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="claims")
        self._stepper = ThreadPoolExecutor(1, thread_name_prefix="allocate")
        self._hung_calls: list[str] = []
        self._step_done = asyncio.Condition()
        self._steps = 0
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def hung_calls(self) -> list[str]:
        """Calls that a stop did not wait for."""
        return self._hung_calls

    async def start(self) -> None:
        """Restore the stored claims, then listen.

        Waiting claims are tried after that, because there may be thousands.
        """
        self._workers.start()
        await self._step()
        await self._workers.done(timeout_s=START_TIMEOUT_S)
        await self._server.start()
        self._loop_task = asyncio.create_task(self._run(), name="claims")

    async def stop(self) -> None:
        """Stop; prepared claims stay prepared."""
        await self._server.stop()
        self.queue.stop()
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        self._validator.stop()
        ends = {
            "allocating claims": _shut_down(self._stepper),
            "answering requests": _shut_down(self._worker),
            "preparing or releasing claims": self._workers.stop(),
        }
        tasks = {asyncio.create_task(end, name=operation) for operation, end in ends.items()}
        _, under_way = await asyncio.wait(tasks, timeout=STOP_AFTER_S)
        self._hung_calls = sorted(task.get_name() for task in under_way)
        for task in under_way:
            task.cancel()
        self.store.close()

    def devices_changed(self) -> None:
        """Have waiting claims tried again: a device came, went, or changed. Call it on the event loop."""
        self.queue.devices_changed()
        self._wake.set()

    async def suspend(self, why: str, *, release: bool, timeout_s: float = SUSPEND_TIMEOUT_S) -> None:
        """Allocate and prepare nothing more; with `release` release every claim.

        Returns when nothing is under way, after `timeout_s` at the latest. A claim that a hung device keeps under way
        is released by a later step, once that is over: no other claim waits for it.
        """
        await self._work(lambda: self.queue.suspend(why, release=release))
        if self._loop_task is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    # Claims that are being prepared can be released only after that.
                    await self._step()
                    if not await self._workers.done():
                        break
        except TimeoutError:
            log.warning("claims are still being prepared or released", extra={"claims": self._workers.in_flight})
        self._wake.set()

    async def change_reason(self, why: str) -> None:
        """Change the reason of `suspend`."""
        await self._work(lambda: self.queue.change_reason(why))

    async def views(self) -> list[ClaimView]:
        """Show every claim, oldest first."""
        return await self._work(self.queue.views)

    async def allocated(self) -> list[ClaimView]:
        """Show the claims that hold devices, oldest first."""
        return await self._work(self.queue.allocated_views)

    @property
    def waiting_requests(self) -> int:
        """Number of requests that wait for a claim."""
        return self._server.waiting_requests

    @property
    def steps(self) -> int:
        """Number of steps so far. A step follows each release of a claim."""
        return self._steps

    async def wait_for_step(self, steps_before: int) -> None:
        """Wait until there are more than `steps_before` steps."""
        async with self._step_done:
            await self._step_done.wait_for(lambda: self._steps != steps_before)

    async def resume(self) -> None:
        """Allocate and prepare again, in the old order."""
        await self._work(self.queue.resume)
        self._wake.set()

    async def _run(self) -> None:
        retry: float | None = None
        logged = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry):
                    await self._wake.wait()
            self._wake.clear()
            try:
                retry = await self._step()
                logged = ""
            except AgentError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.error("claims cannot be reconciled now", extra={"error": logged, "in": FAILED_STEP_RETRY_S})
                retry = FAILED_STEP_RETRY_S
            except Exception:  # a failure of one claim must not affect the others
                log.exception("claims could not be reconciled")
                retry = FAILED_STEP_RETRY_S

    async def _step(self) -> float | None:
        step = partial(self.queue.reconcile, budget_s=STEP_BUDGET_S)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._stepper, step)
        finally:
            async with self._step_done:
                self._steps += 1
                self._step_done.notify_all()

    async def _wait_settled(self, uids: Collection[str], deadline: float) -> None:
        """Wait until these claims have a result, until the deadline; a device of another claim delays no request."""
        self._wake.set()
        now = asyncio.get_running_loop().time
        first_deadline = min(now() + FIRST_TRY_S, deadline)
        with self._server.waiting() as may_wait, contextlib.suppress(TimeoutError):
            if not may_wait:
                return
            async with asyncio.timeout_at(deadline):
                while True:
                    steps_before = self._steps
                    if await self._work(lambda: self.queue.is_settled(uids)):
                        return
                    tried = await self._work(lambda: self.queue.is_tried(uids))
                    remaining_s = (deadline if tried else first_deadline) - now()
                    if remaining_s <= 0:
                        return
                    await self._wait_for_step_after(steps_before, remaining_s)

    async def _work(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    async def _handle(self, line: bytes) -> Any:
        deadline = asyncio.get_running_loop().time() + RESPOND_AFTER_S
        request = decode_request(line)
        match request:
            case Apply():
                return await self._apply(request, deadline)
            case Get(namespace, name, wait):
                return self._with_health(await self._get(namespace, name, min(wait, MAX_WAIT_S)))
            case ListClaims():
                return [self._with_health(view) for view in await self._work(self.queue.views)]
            case ListClasses():
                return await self._work(self.queue.classes)
            case Delete():
                return await self._delete(request, deadline)
            case ReleaseRun(namespace, name, token, wait):
                released = await self._work(lambda: self.queue.release_run(namespace, name, token))
                self._wake.set()
                return released is None or await self._wait_deleted(namespace, name, released, wait)
            case State():
                return await self._work(self._state)

    async def _apply(self, request: Apply, deadline: float) -> list[ApplyResult]:
        if len(request.objects) > MAX_OBJECTS_PER_APPLY:
            raise UsageError(
                f"{len(request.objects)} objects in one request, {MAX_OBJECTS_PER_APPLY} at most",
                hint="apply them in several",
            )
        timeout_s = min(VALIDATION_TIMEOUT_S, deadline - asyncio.get_running_loop().time())
        if problems := await self._validator.problems(request.objects, timeout_s=timeout_s):
            raise PermanentError("\n".join(problems))
        applied = await self._work(lambda: self.queue.apply(request.objects))
        claims = [(done.namespace, done.name) for done in applied if done.kind == CLAIM]
        uids = await self._work(lambda: {uid for key in claims if (uid := self.queue.uid_of(*key)) is not None})
        await self._wait_settled(uids, deadline)
        views = {(view.namespace, view.name): view for view in await self._work(lambda: self.queue.views(claims))}
        return [msgspec.structs.replace(done, claim=views.get((done.namespace, done.name))) for done in applied]

    def _with_health(self, view: ClaimView) -> ClaimView:
        """Show a prepared claim with a lost device as unusable; the store does not change."""
        if view.phase != "Prepared":
            return view
        reasons = [
            f"{device.device}: {reason}"
            for device in view.devices
            if (reason := unusable_reason(self._devices.lookup(device.pool, device.device)))
        ]
        return msgspec.structs.replace(view, phase="Unhealthy", message="; ".join(reasons)) if reasons else view

    async def _get(self, namespace: str, name: str, wait: float) -> ClaimView:
        deadline = asyncio.get_running_loop().time() + wait
        with self._server.waiting() as may_wait:
            while True:
                steps_before = self._steps
                is_final = await self._work(lambda: self.queue.is_final(namespace, name))
                remaining_s = deadline - asyncio.get_running_loop().time()
                if is_final or remaining_s <= 0:
                    return await self._work(lambda: self.queue.view(namespace, name))
                if not may_wait:
                    raise BusyError(
                        f"{self._server.waiting_requests} requests wait for claims, and no more can",
                        where=f"claim {namespace}/{name}",
                        hint="repeat the command later, or see `dra-agent claim list`",
                    )
                await self._wait_for_step_after(steps_before, remaining_s)

    async def _delete(self, request: Delete, deadline: float) -> bool:
        if request.kind == CLASS:
            await self._work(lambda: self.queue.delete_class(request.name))
            return True
        namespace = request.namespace or DEFAULT_NAMESPACE
        uid = await self._work(lambda: self.queue.delete(namespace, request.name))
        await self._wait_settled({uid}, deadline)
        return await self._wait_deleted(namespace, request.name, uid, request.wait)

    async def _wait_deleted(self, namespace: str, name: str, uid: str, wait: float) -> bool:
        deadline = asyncio.get_running_loop().time() + min(wait, MAX_WAIT_S)
        with self._server.waiting() as may_wait:
            while True:
                steps_before = self._steps
                if await self._work(lambda: self.queue.uid_of(namespace, name)) != uid:
                    return True
                remaining_s = deadline - asyncio.get_running_loop().time()
                if remaining_s <= 0 or not may_wait:
                    return False
                await self._wait_for_step_after(steps_before, remaining_s)

    async def _wait_for_step_after(self, steps_before: int, timeout_s: float) -> None:
        """Wait for the completion of a step after the first `steps_before` steps."""
        async with self._step_done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._step_done.wait_for(lambda: self._steps != steps_before)

    def _state(self) -> Object:
        return {
            "node": self._node,
            "driver": self._driver,
            "classes": self.queue.classes(),
            "slices": self._devices.slices(),
            "allocated": self.queue.allocated(),
        }


async def _shut_down(pool: ThreadPoolExecutor) -> None:
    await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
