"""Agents as processes that are killed, hang or fail at a chosen point.

`python -m prepare.life_cycle.agent_process SOCKET` imports everything once and forks an agent for each connection. An
agent has the parts that prepare claims in the product: ledger, locks, owner files, reclaim state, and the threads that
run the calls of the kubelet. It reads its calls as lines of JSON. Its clock can be advanced, so that a deadline passes
without a wait.
"""

# The clock is imported first: modules of the agent keep a reference to time.monotonic.
# ruff: noqa: I001
from __future__ import annotations
from functools import partial

from prepare.life_cycle import clock

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from dra_agent.agent.rolling_update import InstanceRegistry
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.kubelet_plugin.claim_executor import ClaimExecutor
from dra_agent.prepare.locks import KeyedLocks
from dra_agent.reclaim.gated_preparer import GatedPreparer
from dra_agent.reclaim.service import ReclaimService
from eventually import eventually_async
from prepare.life_cycle.points import (
    InterruptibleCall,
    PartitionFiles,
    PointedLedger,
    PointedOwnership,
    ProcessPoints,
    SendEvent,
    run_with_points,
)
from prepare.life_cycle.protocol import AgentSettings, Call, Event
from prepare.simulated_node import SimulatedNode

THREADS = 16
_T = TypeVar("_T")


class Agent:
    """One agent, from its settings to its end."""

    def __init__(self, settings: AgentSettings, send: SendEvent) -> None:
        root, state = Path(settings.root), Path(settings.root) / settings.state_dir
        state.mkdir(exist_ok=True)
        self.send = send
        self.present = root / "present"
        self.node = SimulatedNode(root, settings.gpus, driver=settings.driver)
        self.node.points = points = ProcessPoints()
        self.node.partitions.points = points
        self.node.partitions.hardware = PartitionFiles(root / "hardware", settings.driver)
        self.find_device = self.node.lookup
        self.node.lookup = self.lookup  # type: ignore[method-assign]
        instances = None
        if settings.shared:
            instances = InstanceRegistry(state, settings.name)
            self.node.locks = KeyedLocks(state / "locks" / "devices", process=settings.name)
        self.ledger = PointedLedger(state, settings.boot, shared_as=settings.name if settings.shared else None)
        self.ledger.points = points
        self.node.ledger = self.ledger
        ownership = PointedOwnership(root / "run", state, lambda: settings.state_dir)
        ownership.points = points
        self.node.ownership = ownership
        self.node.start()
        self.reclaim = ReclaimService(
            state, settings.boot, [], is_newest=instances.is_newest if instances else lambda: True
        )
        self.preparer = GatedPreparer(self.node.preparer, self.reclaim, self.ledger)
        self.problems = ownership.reconcile(self.ledger, self.node.lookup)
        self.claim_executor = ClaimExecutor(THREADS)
        self.repair_executor = DaemonExecutor(THREADS, "repair")
        self.calls: dict[int, InterruptibleCall] = {}
        """Calls that run or hang."""
        self.running: set[tuple[int, str]] = set()

    def lookup(self, pool: str, name: str) -> Device | None:
        self.node.points("lookup")
        return self.find_device(pool, name) if (self.present / name).exists() else None

    async def do(self, call: Call) -> Event:
        match call.what:
            case "prepare" | "unprepare":
                return await self.run_kubelet_call(call)
            case "recover":
                return await self.recover(call)
            case "resume":
                return await self.resume(call)
            case "notice":
                await self.reclaim.begin("notice", deadline=None, description="a test")
            case "cancel":
                await self.reclaim.cancel(everything=True)
            case "set forward":
                clock.set_forward(call.seconds)
        # Without a lease of the ledger: the next call of the agent may read an outdated ledger.
        return Event(call.number, "answered")

    async def run_kubelet_call(self, call: Call) -> Event:
        """Run a call as the service of the plugin does."""
        interruptible = self.calls[call.number] = InterruptibleCall(call, self.send)
        deadline_s = asyncio.get_running_loop().time() + call.seconds
        deadline = Deadline(deadline_s)
        work: Callable[[], object] = lambda: self.preparer.unprepare(call.uid, deadline)  # noqa: E731
        activity, key = "unpreparing", b""
        if call.what == "prepare":
            activity, key = "preparing", msgspec.json.encode(call.claim["status"])
            work = lambda: self.preparer.prepare(call.claim, deadline)  # noqa: E731
        event = Event(call.number, "answered")
        try:
            result = await self.claim_executor.run(
                call.uid, activity, key, lambda: self.run(interruptible, call.uid, work), deadline_s
            )
        except AgentError as error:
            event = Event(call.number, "refused", type(error).__name__, str(error), isinstance(error, RetryableError))
        else:
            event.devices = result if isinstance(result, list) else []
            event.released = result is True
        event.late_s = asyncio.get_running_loop().time() - deadline_s
        await self.wait_until_idle(call.uid)
        return self.add_state(call.number, event, interruptible)

    async def recover(self, call: Call) -> Event:
        interruptible = self.calls[call.number] = InterruptibleCall(call, self.send)

        def run_repair(description: str, call: Callable[[], _T]) -> _T:
            """Abandon a hanging repair, as ExecutorRunner does; that one waits by the real clock."""
            is_done = threading.Event()
            uid = description.rpartition(" ")[2]
            future = self.repair_executor.submit(lambda: self.run(interruptible, uid, call))
            future.add_done_callback(lambda _: is_done.set())
            while not is_done.wait(0.001):
                if interruptible.hung.is_set() and interruptible.hung_on == uid:
                    raise RetryableError(f"{description} has not ended")
            return future.result()

        loop = asyncio.get_running_loop()
        report = await loop.run_in_executor(
            self.repair_executor, partial(self.node.preparer.recovery.recover, run_repair)
        )
        event = Event(call.number, "answered", problems=list(report.problems), busy=list(report.busy))
        return self.add_state(call.number, event, interruptible)

    async def resume(self, call: Call) -> Event:
        hung = self.calls.pop(call.hung)
        hung.hung.clear()
        hung.resume.put(call.action)
        await eventually_async(lambda: hung.resume.empty() and (call.hung, hung.hung_on) not in self.running)
        await self.wait_until_idle(hung.call.uid)
        return self.add_state(call.number)

    def run(self, interruptible: InterruptibleCall, uid: str, work: Callable[[], _T]) -> _T:
        self.running.add((interruptible.call.number, uid))
        try:
            return run_with_points(interruptible, uid, work)
        finally:
            self.running.discard((interruptible.call.number, uid))

    async def wait_until_idle(self, uid: str) -> None:
        """Wait until no operation on a claim is in progress, except hanging ones."""
        await eventually_async(
            lambda: (
                self.claim_executor.waiters(uid) is None
                or any(
                    interruptible.hung.is_set() and interruptible.call.uid == uid
                    for interruptible in self.calls.values()
                )
            )
        )

    def add_state(
        self, number: int, event: Event | None = None, interruptible: InterruptibleCall | None = None
    ) -> Event:
        event = event or Event(number, "answered")
        with self.ledger.lease():
            event.entries = self.ledger.entries()
        event.claim_locks = self.node.preparer.claim_locks.held
        event.device_locks = self.node.preparer.device_locks.held
        if interruptible is not None:
            event.fired = interruptible.fired
            if not interruptible.hung.is_set():
                self.calls.pop(interruptible.call.number, None)
        return event


async def serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    loop, tasks = asyncio.get_running_loop(), set()

    def send(event: Event) -> None:
        loop.call_soon_threadsafe(writer.write, msgspec.json.encode(event) + b"\n")

    settings = msgspec.json.decode(await reader.readline(), type=AgentSettings)
    try:
        agent = Agent(settings, send)
        await agent.reclaim.start()
        send(Event(0, "ready", pid=os.getpid(), problems=agent.problems))
    except Exception:  # noqa: BLE001 - the test reports it
        send(Event(0, "broken", text=traceback.format_exc(), pid=os.getpid()))
        await reader.readline()
        return

    async def do(call: Call) -> None:
        try:
            send(await agent.do(call))
        except Exception as error:  # noqa: BLE001
            send(Event(call.number, "broken", type(error).__name__, traceback.format_exc()))

    while line := await reader.readline():
        task = asyncio.create_task(do(msgspec.json.decode(line, type=Call)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        listener.settimeout(None)
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                # The process that started this one is gone, and ends this agent, too.
                asyncio.run(serve(connection))
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    main()
