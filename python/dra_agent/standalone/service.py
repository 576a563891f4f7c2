"""Standalone mode as one running part: store, queue, socket, and the loop that allocates and prepares claims.

Allocating happens on one worker thread, preparing and releasing on one for each claim: the event loop never waits for a
disk or a vendor library, and no claim waits for another claim's device. Requests that change stored objects have one
thread, requests that read another one: a request for all claims does not wait for one that applies thousands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from dra_agent.api_object import Object
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import AgentError
from dra_agent.prepare import ClaimPreparer
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.claim import ClaimView
from dra_agent.standalone.claim_workers import ClaimWorkers
from dra_agent.standalone.protocol import SOCKET
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.requests import ClaimRequests, NodeDevices
from dra_agent.standalone.steps import Steps
from dra_agent.standalone.store import Store
from dra_agent.supervisor import on_thread, supervisor

log = logging.getLogger(__name__)

START_TIMEOUT_S = 5.0
"""Seconds to restore claims before the agent listens; one that hangs continues in the background."""
STEP_BUDGET_S = 0.2
"""After that a step defers the rest to the next one, so that other work of the queue runs in between."""
FAILED_STEP_RETRY_S = 5.0
"""Seconds until the step after one that failed, as while the store cannot be read or written."""
STOP_AFTER_S = 5.0
"""How long a stop waits for running work. Work that hangs continues at the next start."""
SUSPEND_TIMEOUT_S = 5.0
"""Seconds that `suspend` waits for running work: the shortest notice of a cloud is 30 s."""
_T = TypeVar("_T")


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
        self.socket = state_dir / SOCKET
        self.store = Store(state_dir)
        self.steps = Steps()
        self._workers = ClaimWorkers(self.steps.request)
        self.queue = ClaimQueue(
            self.store,
            node=node,
            slices=devices.slices,
            allocator=allocator,
            preparer=preparer,
            clock=time.monotonic,
            workers=self._workers,
        )
        self._requests = ClaimRequests(
            self.socket,
            queue=self.queue,
            steps=self.steps,
            work=self._work,
            read=self._read,
            devices=devices,
            node=node,
            driver=driver,
            validate=validate,
        )
        self._worker = DaemonExecutor(1, "claims", kept=1)
        self._reader = DaemonExecutor(1, "claims-read", kept=1)
        self._stepper = DaemonExecutor(1, "allocate", kept=1)
        self._hung_calls: list[str] = []
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
        await self._requests.start()
        self._loop_task = supervisor().loop("claims", self._run)

    async def stop(self) -> None:
        """Stop; prepared claims stay prepared."""
        await self._requests.stop()
        self.queue.stop()
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        ends = {
            "allocating claims": _shut_down(self._stepper),
            "answering requests": _shut_down(self._worker),
            "reading claims": _shut_down(self._reader),
            "preparing or releasing claims": self._workers.stop(),
        }
        tasks = {supervisor().start_task(operation, end) for operation, end in ends.items()}
        _, under_way = await asyncio.wait(tasks, timeout=STOP_AFTER_S)
        self._hung_calls = sorted(task.get_name() for task in under_way)
        for task in under_way:
            task.cancel()
        self.store.close()

    def devices_changed(self) -> None:
        """Have waiting claims tried again: a device came, went, or changed. Call it on the event loop."""
        self.queue.devices_changed()
        self.steps.request()

    async def suspend(self, why: str, *, release: bool, timeout_s: float = SUSPEND_TIMEOUT_S) -> None:
        """Allocate and prepare nothing more; with `release` release every claim.

        Returns when nothing is under way, after `timeout_s` at the latest. A claim that a hung device keeps under way
        is released by a later step, once that is over: no other claim waits for it.
        """
        await self._read(lambda: self.queue.suspend(why, release=release))
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
        self.steps.request()

    async def change_reason(self, why: str) -> None:
        """Change the reason of `suspend`."""
        await self._read(lambda: self.queue.change_reason(why))

    async def allocated(self) -> list[ClaimView]:
        """Show the claims that hold devices, oldest first."""
        return await self._read(self.queue.allocated_views)

    @property
    def waiting_requests(self) -> int:
        """Number of requests that wait for a claim."""
        return self._requests.waiting

    async def resume(self) -> None:
        """Allocate and prepare again, in the old order."""
        await self._read(self.queue.resume)
        self.steps.request()

    async def _run(self) -> None:
        retry: float | None = None
        logged = ""
        while True:
            await self.steps.wait_requested(retry)
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
        step = partial(self.queue.reconcile, budget_s=STEP_BUDGET_S, is_requested=self.steps.is_requested)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._stepper, step)
        finally:
            await self.steps.completed()

    async def _work(self, call: Callable[[], _T]) -> _T:
        """Execute a call that changes stored objects."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    async def _read(self, call: Callable[[], _T]) -> _T:
        """Execute a call that takes only a short time, and waits for no change of stored objects."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, call)


async def _shut_down(pool: DaemonExecutor) -> None:
    await on_thread(pool.finish)
