"""The requests of the command line: each is validated, given to the queue, and answered when it has a result.

A request that waits does so between two steps of the queue, and leaves the threads of requests to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from dra_agent import garbage_collection
from dra_agent.api_object import DEFAULT_NAMESPACE, Object
from dra_agent.control_socket.server import Server
from dra_agent.errors import BusyError, PermanentError, UsageError
from dra_agent.health.published_health import unusable_reason
from dra_agent.inventory.model import Device
from dra_agent.standalone.claim import ApplyResult, ClaimPage, ClaimView
from dra_agent.standalone.intake import VALIDATION_TIMEOUT_S, Validator
from dra_agent.standalone.protocol import (
    MAX_LINE_BYTES,
    Apply,
    Delete,
    Get,
    ListClaims,
    ListClasses,
    ListPage,
    Plan,
    ReleaseRun,
    Request,
    State,
    decode_request,
)
from dra_agent.standalone.queue import CLAIMS_AT_A_TIME, ClaimQueue
from dra_agent.standalone.steps import Steps
from dra_agent.standalone.stored_form import CLAIM, CLASS

MAX_WAIT_S = 3600.0
FIRST_TRY_S = 5.0
"""Seconds from a request to its response, for the first attempt of its claims; thousands of claims take longer. At
least a fifth of it remains once they are stored."""
RESPOND_AFTER_S = 45.0
"""Seconds from a request to its response, for validation and for claims to be prepared or released; a `wait` of the
request comes on top. The command line waits a minute."""
STOP_GRACE_S = 0.5
"""Seconds after a stop in which requests are answered. One that waits for a claim does not end within any grace."""
MAX_OBJECTS_PER_APPLY = 25_000
LARGE_REQUEST_BYTES = 256 << 10
"""A request of this size has hundreds of claims, so garbage collection is paused while it is executed."""
_T = TypeVar("_T")


class NodeDevices(Protocol):
    """The devices of this node. A protocol because the agent, which has them, is a layer above."""

    def slices(self) -> list[Object]:
        """Return the current ResourceSlices."""

    def lookup(self, pool: str, name: str) -> Device | None:
        """Return a device; None if it is not on this host now."""


class Work(Protocol):
    """Executes a call on a thread of requests."""

    def __call__(self, call: Callable[[], _T], /) -> Awaitable[_T]:
        """Return its result."""


class ClaimRequests:
    """The socket of the agent, from `start` to `stop`."""

    def __init__(
        self,
        socket: Path,
        *,
        queue: ClaimQueue,
        steps: Steps,
        work: Work,
        read: Work,
        devices: NodeDevices,
        node: str,
        driver: str,
        validate: Callable[[Object], list[str]],
    ) -> None:
        """`validate` returns the errors of an object.

        `work` is for calls that change stored objects, one after another, `read` for all others.
        """
        self._queue = queue
        self._steps = steps
        self._work = work
        self._read = read
        self._devices = devices
        self._node = node
        self._driver = driver
        self._validator = Validator(validate)
        self._server = Server(socket, self._handle, line_limit=MAX_LINE_BYTES, stop_grace_s=STOP_GRACE_S)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a claim."""
        return self._server.waiting_requests

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening, and drop the clients."""
        await self._server.stop()
        self._validator.stop()

    async def _handle(self, line: bytes) -> Any:
        received = asyncio.get_running_loop().time()
        with garbage_collection.paused() if len(line) > LARGE_REQUEST_BYTES else contextlib.nullcontext():
            return await self._execute(decode_request(line), received)

    async def _execute(self, request: Request, received: float) -> Any:
        deadline = received + RESPOND_AFTER_S
        match request:
            case Apply():
                return await self._apply(request, received, deadline)
            case Plan(objects):
                await self._check(objects, deadline)
                return await self._read(lambda: self._queue.preview(objects))
            case Get(namespace, name, wait):
                return self._with_health(await self._get(namespace, name, min(wait, MAX_WAIT_S)))
            case ListClaims():
                return await self._list()
            case ListPage():
                return await self._list_page(request)
            case ListClasses():
                return await self._read(self._queue.classes)
            case Delete():
                return await self._delete(request, received, deadline)
            case ReleaseRun(namespace, name, token, wait):
                released = await self._work(lambda: self._queue.release_run(namespace, name, token))
                self._steps.request()
                return released is None or await self._wait_deleted(namespace, name, released, wait)
            case State():
                return await self._read(self._state)

    async def _check(self, objects: list[Object], deadline: float) -> None:
        """Raise an AgentError for too many objects, or for invalid ones."""
        if len(objects) > MAX_OBJECTS_PER_APPLY:
            raise UsageError(
                f"{len(objects)} objects in one request, {MAX_OBJECTS_PER_APPLY} at most", hint="apply them in several"
            )
        timeout_s = min(VALIDATION_TIMEOUT_S, deadline - asyncio.get_running_loop().time())
        if problems := await self._validator.problems(objects, timeout_s=timeout_s):
            raise PermanentError("\n".join(problems))

    async def _apply(self, request: Apply, received: float, deadline: float) -> msgspec.Raw:
        await self._check(request.objects, deadline)
        applied = await self._work(lambda: self._queue.apply(request.objects))
        claims = [(done.namespace, done.name) for done in applied if done.kind == CLAIM]
        uids = await self._read(lambda: {uid for key in claims if (uid := self._queue.uid_of(*key)) is not None})
        await self._wait_settled(uids, received, deadline)
        parts = []
        for first in range(0, len(applied), CLAIMS_AT_A_TIME):
            part = applied[first : first + CLAIMS_AT_A_TIME]
            parts.append(await self._read(partial(self._encoded_results, part, whole=request.whole)))
        return msgspec.Raw(b"[" + b",".join(parts) + b"]")

    def _encoded_results(self, applied: list[ApplyResult], *, whole: bool) -> bytes:
        """Return the results with their claims in JSON, without brackets.

        Encoding thousands at once would stop all threads meanwhile.
        """
        claims = [(done.namespace, done.name) for done in applied if done.kind == CLAIM]
        views = {(view.namespace, view.name): view for view in self._queue.views_of(claims, whole=whole)}
        results = [msgspec.structs.replace(done, claim=views.get((done.namespace, done.name))) for done in applied]
        return msgspec.json.encode(results)[1:-1]

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
        await self._wait_until(
            lambda: self._queue.is_final(namespace, name), deadline, where=f"claim {namespace}/{name}"
        )
        return await self._read(lambda: self._queue.view(namespace, name))

    async def _list(self) -> list[ClaimView]:
        """Show every claim; requests of others come between two pages."""
        views: list[ClaimView] = []
        after: int | None = 0
        while after is not None:
            page = await self._list_page(ListPage(after))
            views += page.claims
            after = page.next
        return views

    async def _list_page(self, request: ListPage) -> ClaimPage:
        page = await self._read(
            lambda: self._queue.page(request.after, request.limit, allocated=request.allocated, whole=request.whole)
        )
        return ClaimPage([self._with_health(view) for view in page.claims], page.next)

    async def _delete(self, request: Delete, received: float, deadline: float) -> bool:
        if request.kind == CLASS:
            await self._work(lambda: self._queue.delete_class(request.name))
            return True
        namespace = request.namespace or DEFAULT_NAMESPACE
        uid = await self._work(lambda: self._queue.delete(namespace, request.name))
        await self._wait_settled({uid}, received, deadline)
        return await self._wait_deleted(namespace, request.name, uid, request.wait)

    async def _wait_settled(self, uids: Collection[str], received: float, deadline: float) -> None:
        """Wait until these claims have a result, until the deadline; a device of another claim delays no request."""
        self._steps.request()
        now = asyncio.get_running_loop().time()
        first_deadline = min(max(received + FIRST_TRY_S, now + FIRST_TRY_S / 5), deadline)
        with contextlib.suppress(TimeoutError, BusyError):
            async with asyncio.timeout_at(deadline):
                if await self._wait_until(lambda: self._queue.is_tried(uids), first_deadline):
                    await self._wait_until(lambda: self._queue.is_settled(uids), deadline)

    async def _wait_deleted(self, namespace: str, name: str, uid: str, wait: float) -> bool:
        deadline = asyncio.get_running_loop().time() + min(wait, MAX_WAIT_S)
        with contextlib.suppress(BusyError):
            return await self._wait_until(lambda: self._queue.uid_of(namespace, name) != uid, deadline)
        return False

    async def _wait_until(self, is_reached: Callable[[], bool], deadline: float, *, where: str = "") -> bool:
        """Return whether the queue reached a state, which is looked for now and after each step until the deadline.

        Raises BusyError if it would have to wait, and as many requests wait as can.
        """
        with self._server.waiting() as may_wait:
            while True:
                steps_before = self._steps.count
                if await self._read(is_reached):
                    return True
                remaining_s = deadline - asyncio.get_running_loop().time()
                if remaining_s <= 0:
                    return False
                if not may_wait:
                    raise BusyError(
                        f"{self._server.waiting_requests} requests wait for claims, and no more can",
                        where=where,
                        hint="repeat the command later, or see `dra-agent claim list`",
                    )
                await self._steps.wait_after(steps_before, remaining_s)

    def _state(self) -> Object:
        return {
            "node": self._node,
            "driver": self._driver,
            "classes": self._queue.classes(),
            "slices": self._devices.slices(),
            "allocated": self._queue.allocated(),
        }
