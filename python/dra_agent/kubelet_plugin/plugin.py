"""The plugin as one running part: its services on its sockets, and the sockets kept where the kubelet scans for them.

It opens before the devices are known, so that the kubelet connects at once; calls wait for `serve`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

import grpc

from dra_agent import after_response
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import RetryableError
from dra_agent.health.published_health import DeviceHealthStore
from dra_agent.kubelet_plugin import received_request
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.kubelet_plugin.health_stream import RESEND_AFTER_S, HealthService
from dra_agent.kubelet_plugin.interfaces import ClaimSource, PluginMetrics
from dra_agent.kubelet_plugin.registration import Registration, RegistrationStatus
from dra_agent.kubelet_plugin.self_call import CALL_TIMEOUT_S, GRPC_THREADS, call_registration
from dra_agent.kubelet_plugin.service import DraService
from dra_agent.kubelet_plugin.sockets import SocketFile, SocketPaths, remove_abandoned, sockets_of_instances
from dra_agent.prepare import ClaimPreparer
from dra_agent.supervisor import on_thread, supervisor
from dra_agent.threads import require_room

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
"""Seconds between two checks that the socket files exist: other processes may remove them, or replace
their directory."""
SELF_CALL_INTERVAL_S = 30.0
"""Seconds between two calls to itself."""
SELF_CALL_DEADLINE_S = 2 * CALL_TIMEOUT_S
"""For a call whose own timeout gRPC does not observe."""
GRACE_S = 15.0
"""Maximum seconds that a running call is waited for at the end."""
MIN_GRACE_S = 0.5
"""Seconds for which calls are waited for at the end where all the work that is under way hangs."""
MAX_THREADS = 256
"""Maximum concurrent claims. A device that hangs occupies at most three threads: one hangs, two wait."""
MAX_CALLS = 1024
"""Maximum calls of claims at once: those that work or hang, and as many on each connection that wait for them."""
MAX_OTHER_CALLS = 1024
"""Maximum calls of the registration and health services at once; each watcher of health is one."""
# Connections have no maximum age: each GOAWAY would start the kubelet's timer for deleting our slices.
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 256))


_P = ParamSpec("_P")
_T = TypeVar("_T")


class KubeletPlugin:
    """One instance of the driver for the kubelet, from `open` to `close`."""

    def __init__(
        self,
        paths: SocketPaths,
        driver: str,
        claims: ClaimSource,
        *,
        health: bool = False,
        resend_after_s: float = RESEND_AFTER_S,
        metrics: PluginMetrics | None = None,
        registered: Callable[[RegistrationStatus], None] = lambda state: None,
    ) -> None:
        """`health`: whether `serve` will get a health source; it is advertised to the kubelet before.

        `resend_after_s`: the health of all devices is sent again after this time, changed or not.
        `registered` is called on the event loop for every registration status of the kubelet.
        """
        self._paths = paths
        self._driver = driver
        self._metrics = metrics
        self._on_registered = registered
        self.executor = ClaimExecutor(MAX_THREADS)
        self._service = DraService(claims, self.executor, metrics)
        self._registration = Registration(driver, paths.service, health=health, on_status=self._on_status)
        self.health = HealthService(resend_after_s=resend_after_s) if health else None
        # An error of `submit` would end gRPC's serving thread, and no call would have a response any more
        # (grpc/grpc, src/python/grpcio/grpc/_server.py: _serve).
        self._calls = _CallThreads(MAX_CALLS, "calls", kept=1)
        self._other_calls = DaemonExecutor(MAX_OTHER_CALLS, "kubelet", kept=1)
        self._self_calls = DaemonExecutor(1, "self call", kept=1)
        self._self_call: asyncio.Future[None] | None = None
        """The call that runs, or hangs."""
        self._server: grpc.Server | None = None
        self._files: tuple[SocketFile, ...] = ()
        self._loops: list[asyncio.Task[None]] = []
        self._retiring: set[asyncio.Task[None]] = set()
        self._problem = ""

    @property
    def state(self) -> RegistrationStatus:
        """The last registration status."""
        return self._registration.state

    @property
    def failures(self) -> list[str]:
        """Return why the kubelet cannot use this driver; empty if it can."""
        if self._problem:
            return [self._problem]
        return [] if self.state.done else [str(self.state)]

    @property
    def in_flight(self) -> list[str]:
        """Return the work in progress."""
        return self.executor.in_flight

    async def open(self) -> None:
        """Listen and register; retry on failures."""
        removed = remove_abandoned(sockets_of_instances(self._paths, self._driver))
        if removed:
            # The kubelet would retry them forever.
            log.info(
                "removed sockets of instances that are no more", extra={"sockets": [str(path) for path in removed]}
            )
        await self._try_to_listen()
        self._loops = [supervisor().loop("sockets", self._keep), supervisor().loop("self call", self._call_itself)]

    def serve(self, preparing: ClaimPreparer, health: DeviceHealthStore | None = None) -> None:
        """Start to prepare claims, and to report device health."""
        self._service.set_preparer(preparing)
        if self.health is not None and health is not None:
            self.health.set_source(health)

    async def close(self) -> None:
        """Remove the own sockets, finish the calls in flight, and stop; prepared claims stay prepared."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._self_call is not None:
            self._self_call.cancel()
        self._self_calls.shutdown()
        for file in reversed(self._files):  # the registration's first: the kubelet switches to another instance
            file.remove()
        if self.health is not None:
            self.health.close()
        grace = GRACE_S if not self.executor.in_flight else max(MIN_GRACE_S, self.executor.worth_waiting(GRACE_S))
        if self._server is not None:
            await _stopped(self._server, grace)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=grace)
        if not await self.executor.finished(GRACE_S):
            log.warning("stopped without waiting for calls that hang", extra={"work": self.executor.in_flight})
        self.executor.close()
        self._calls.shutdown()
        self._other_calls.shutdown()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if not self._files or not all(file.is_present for file in self._files):
                if self._files:
                    log.warning("a socket file was removed; listening again", extra={"sockets": self._paths.distinct})
                await self._try_to_listen()

    async def _call_itself(self) -> None:
        while True:
            if self._files:
                await self._call(self._files[-1].published_address)
            await asyncio.sleep(SELF_CALL_INTERVAL_S)

    async def _call(self, address: str) -> None:
        """Call itself, or wait for an earlier call that hangs. Raises RetryableError without a response in time."""
        if self._self_call is None:
            loop = asyncio.get_running_loop()
            self._self_call = loop.run_in_executor(self._self_calls, call_registration, address)
        done, _ = await asyncio.wait([self._self_call], timeout=SELF_CALL_DEADLINE_S)
        if not done:
            raise RetryableError(
                "a call of the plugin to itself hangs", where=address, hint="the agent is restarted if this lasts"
            )
        call, self._self_call = self._self_call, None
        call.result()

    async def _try_to_listen(self) -> None:
        try:
            await self._listen()
        except RetryableError as error:
            if str(error) != self._problem:
                log.error("the kubelet cannot find this driver yet", extra={"reason": str(error)})
            self._problem = str(error)
        else:
            self._problem = ""

    async def _listen(self) -> None:
        """Serve on new sockets that replace the old ones; open connections are kept until then."""
        require_room(GRPC_THREADS)
        before, old = self._files, self._server
        replaced = before or (None,) * len(self._paths.distinct)
        files = tuple(SocketFile(path, was) for path, was in zip(self._paths.distinct, replaced, strict=True))
        server = grpc.server(self._calls, options=_OPTIONS)
        server.add_generic_rpc_handlers((self._registration.handler(self._other_calls), self._service.handler()))
        if self.health is not None:
            server.add_generic_rpc_handlers(tuple(self.health.handlers(self._other_calls)))
        try:
            for file in files:
                try:
                    server.add_insecure_port(file.address)
                except RuntimeError as error:
                    raise RetryableError(f"cannot listen: {error}", where=str(file.path)) from error
            server.start()
            for file in files:
                file.publish()
        except RetryableError:
            for file in files:
                file.remove()
            await _stopped(server, None)
            raise
        self._server, self._files = server, files
        log.info("listening for the kubelet", extra={"sockets": [str(path) for path in self._paths.distinct]})
        if old is not None:
            retiring = supervisor().start_task("old sockets", _stopped(old, GRACE_S))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)

    def _on_status(self, state: RegistrationStatus) -> None:
        if self._metrics is not None:
            self._metrics.registration(state.done, state.error)
        self._on_registered(state)


class _CallThreads(DaemonExecutor):
    """Threads of calls, which do what may follow a response after it."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See DaemonExecutor; `fn` responds to a call."""
        if not kwargs and (future := received_request.submit(self._start_call, fn, args)) is not None:
            return future
        return super().submit(after_response.serve, partial(fn, *args, **kwargs))

    def _start_call(self, call: Callable[[], object]) -> object:
        return super().submit(after_response.serve, call)


async def _stopped(server: grpc.Server, grace: float | None) -> None:
    """Accept no calls, wait for those in progress for `grace` seconds, then cancel them."""
    await on_thread(_stop, server, grace)


def _stop(server: grpc.Server, grace: float | None) -> None:
    try:
        stopped = server.stop(grace)
    except RuntimeError:  # the system has no room for the thread of gRPC that would cancel them later
        stopped = server.stop(None)
    stopped.wait()
