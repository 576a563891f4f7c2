"""The life of one agent: puts the parts together, keeps them going, and takes them apart.

It has no logic of claims or devices. Stopping releases nothing: what containers use stays prepared.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import msgspec

from dra_agent import __version__
from dra_agent.agent.config import Config, listen_address
from dra_agent.agent.hardware import Hardware, boot_id
from dra_agent.agent.hosts import agent_host
from dra_agent.agent.lock import StateLock
from dra_agent.agent.measured import MeasuredPreparer
from dra_agent.agent.notify import READY, STOPPING, WATCHDOG, Notifier
from dra_agent.agent.pulse import BEAT, Pulse
from dra_agent.agent.watching import Watcher
from dra_agent.errors import AgentError
from dra_agent.prepare import Preparer, RecoveryReport
from dra_agent.prepare.ledger import JournalLedger

log = logging.getLogger(__name__)

TIDY = 60.0
"""Seconds between two rounds of housekeeping: the ledger's journal, and the CDI specs of prepared claims."""
_T = TypeVar("_T")


class Agent:
    """One agent from start to stop."""

    def __init__(self, config: Config, notifier: Notifier | None = None) -> None:
        self._config = config
        self._notifier = notifier or Notifier()
        self._pulse = Pulse()
        self._stop = asyncio.Event()
        self._hardware: Hardware | None = None
        self._ledger: JournalLedger | None = None
        self._not_ready = "starting"
        self._born = time.monotonic()

    async def run(self) -> None:
        """Start, say so, and live until SIGTERM or SIGINT; raises AgentError if it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        async with AsyncExitStack() as stack:
            stack.callback(self._notifier.send, "STATUS=stopped")
            await self._start(stack)
            await self._live()
            self._not_ready = "stopping"
            self._notifier.send(STOPPING)
            log.info("stopping; prepared claims stay prepared")
        log.info("stopped")

    @property
    def stuck(self) -> list[str]:
        """What still runs on a worker thread and may never end: a library that hangs."""
        return self._pulse.busy()

    async def _start(self, stack: AsyncExitStack) -> None:
        config = self._config
        lock = StateLock(config.state_dir)
        stack.callback(lock.close)
        worker = ThreadPoolExecutor(1, thread_name_prefix="hardware")
        # Not waited for: a library that hangs must not keep the agent from stopping.
        stack.callback(worker.shutdown, wait=False, cancel_futures=True)
        record = self._serve(stack)
        host = await self._work(worker, "building the simulated host", 60.0, lambda: agent_host(config))
        ledger = self._ledger = await self._work(
            worker, "opening the ledger", 60.0, lambda: JournalLedger(config.state_dir, boot_id(host.proc))
        )
        stack.callback(ledger.close)
        if rebooted := len(ledger.report.earlier_boot):
            log.info("the host was restarted: claims are prepared again where they stand", extra={"claims": rebooted})
        for problem in ledger.report.problems():
            log.error("the ledger was damaged", extra={"problem": problem})
        hardware = self._hardware = await self._work(
            worker,
            "reading the host",
            120.0,
            lambda: Hardware(host, config.inventory, node=config.node, driver=config.driver_name),
        )
        stack.callback(hardware.close)
        preparer = self._preparer(ledger, hardware)
        recovered = await self._work(worker, "looking at claims of an earlier run", 300.0, preparer.recover)
        service = self._standalone(MeasuredPreparer(preparer, self._pulse, record), hardware, ledger)
        await service.start()
        stack.push_async_callback(service.stop)
        watcher = Watcher(
            hardware,
            changed=service.devices_changed,
            work=lambda what, call: self._work(worker, what, 120.0, call),
            follows_kernel=str(host.sysfs) == "/sys",
        )
        await watcher.start()
        stack.push_async_callback(watcher.stop)
        stack.callback(_cancel, asyncio.create_task(self._tidy(worker, ledger, preparer), name="tidy"))
        self._ready(recovered)

    def _serve(self, stack: AsyncExitStack) -> Any:
        """Answer /metrics, /healthz and /readyz, if anyone wants them; gives what takes note of requests."""
        if not self._config.metrics_address:
            return None
        from dra_agent.agent.http import HttpServer
        from dra_agent.agent.metrics import Metrics
        from dra_agent.agent.readings import read

        metrics = Metrics(lambda: read(self._config, self._hardware, self._ledger))
        server = HttpServer(
            listen_address(self._config.metrics_address),
            render=metrics.render,
            healthy=self._pulse.ills,
            ready=self._unready,
        )
        server.start()
        stack.callback(server.close)
        log.info("answering /metrics, /healthz and /readyz", extra={"port": server.port})
        return metrics

    def _preparer(self, ledger: JournalLedger, hardware: Hardware) -> Preparer:
        from dra_agent.cdi.directory import SpecDirectory
        from dra_agent.cdi.recipes import Recipes
        from dra_agent.cdi.recipes.choice import find_nvidia_ctk

        config = self._config
        recipes = Recipes(hardware.host, ctk=find_nvidia_ctk(hardware.host))
        specs = SpecDirectory(config.cdi_dir, config.driver_name)
        return Preparer(config.driver_name, ledger, specs, hardware.lookup, recipes=recipes)

    def _standalone(self, preparer: MeasuredPreparer, hardware: Hardware, ledger: JournalLedger) -> Any:
        from dra_agent.agent.validation import problems_of
        from dra_agent.standalone.service import StandaloneService

        config = self._config
        service = StandaloneService(
            config.state_dir,
            node=config.node,
            driver=config.driver_name,
            slices=hardware.slices,
            preparer=preparer,
            allocate=_allocate,
            validate=problems_of,
        )
        entries = [msgspec.to_builtins(entry) for entry in ledger.entries()]
        for name in service.queue.restore(entries, config.driver_name):
            log.warning("claim restored from the ledger: the store had lost it", extra={"claim": name})
        return service

    def _ready(self, recovered: RecoveryReport) -> None:
        assert self._hardware is not None
        # What lives as long as the process need not be looked at by every collection.
        gc.collect()
        gc.freeze()
        self._not_ready = ""
        devices = len(self._hardware.inventory.devices)
        self._notifier.send(READY, f"STATUS={devices} devices on node {self._config.node}")
        log.info(
            "ready",
            extra={
                "version": __version__,
                "devices": devices,
                "claims": len(recovered.kept) + len(recovered.rebuilt),
                "seconds": round(time.monotonic() - self._born, 3),
            },
        )

    async def _live(self) -> None:
        every = BEAT if self._notifier.watchdog is None else min(BEAT, self._notifier.watchdog / 3)
        sick = False
        while not self._stop.is_set():
            self._pulse.beat()
            ills = self._pulse.ills()
            if not ills:
                self._notifier.send(WATCHDOG)
            elif not sick:
                log.error("the agent is stuck", extra={"ills": ills})
            sick = bool(ills)
            try:
                await asyncio.wait_for(self._stop.wait(), every)
            except TimeoutError:
                continue

    async def _tidy(self, worker: ThreadPoolExecutor, ledger: JournalLedger, preparer: Preparer) -> None:
        while True:
            await asyncio.sleep(TIDY)
            for what, call in (("compacting the ledger", ledger.tidy), ("looking at CDI specs", preparer.mend)):
                try:
                    await self._work(worker, what, 300.0, call)
                except AgentError as error:
                    log.warning("not done this time", extra={"what": what, "reason": str(error)})
                except Exception:  # housekeeping that fails must not end housekeeping
                    log.exception("not done this time", extra={"what": what})

    def _unready(self) -> list[str]:
        ills = [self._not_ready] if self._not_ready else []
        if self._ledger is not None and not self._not_ready and (why := self._ledger.report.not_writable):
            ills.append(f"no claim can be recorded: {why}")
        return ills + self._pulse.ills()

    async def _work(self, worker: ThreadPoolExecutor, what: str, at_most: float, call: Callable[[], _T]) -> _T:
        def watched() -> _T:
            with self._pulse.working(what, at_most):
                return call()

        return await asyncio.get_running_loop().run_in_executor(worker, watched)


def _allocate(**question: Any) -> Any:
    from dra_agent.allocator import allocate  # megabytes that only the first claim needs

    return allocate(**question)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
