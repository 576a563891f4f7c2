"""Agents as processes that are killed, hang or fail at a chosen point.

`python -m prepare.life_cycle.agent_process SOCKET` imports everything once and forks an agent for each connection. An
agent has what preparing is made of in the product: ledger, locks, owner files, the state of a reclaim, and the threads
on which the kubelet's calls run. It is told what to do in lines of JSON. Its clock can be set forward, so that a
deadline passes without being waited for.
"""

# Its clock comes first: modules of the agent keep a reference.
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
    Hardware,
    PointedLedger,
    PointedOwnership,
    ProcessPoints,
    Say,
    Stoppable,
    at_work,
)
from prepare.life_cycle.words import AgentSettings, Call, Event
from prepare.simulated_world import World

THREADS = 16
_T = TypeVar("_T")


class Agent:
    """From the first line to the last."""

    def __init__(self, settings: AgentSettings, say: Say) -> None:
        root, state = Path(settings.root), Path(settings.root) / settings.state_dir
        state.mkdir(exist_ok=True)
        self.say = say
        self.present = root / "present"
        self.world = World(root, settings.gpus, driver=settings.driver)
        self.world.points = points = ProcessPoints()
        self.world.partitions.points = points
        self.world.partitions.hardware = Hardware(root / "hardware", settings.driver)
        self.find = self.world.lookup
        self.world.lookup = self.lookup  # type: ignore[method-assign]
        instances = None
        if settings.shared:
            instances = InstanceRegistry(state, settings.name)
            self.world.locks = KeyedLocks(state / "locks" / "devices", process=settings.name)
        self.ledger = PointedLedger(state, settings.boot, shared_as=settings.name if settings.shared else None)
        self.ledger.points = points
        self.world.ledger = self.ledger
        ownership = PointedOwnership(root / "run", state, settings.state_dir)
        ownership.points = points
        self.world.ownership = ownership
        self.world.start()
        self.reclaim = ReclaimService(
            state, settings.boot, [], is_newest=instances.is_newest if instances else lambda: True
        )
        self.preparer = GatedPreparer(self.world.preparer, self.reclaim, self.ledger)
        self.problems = ownership.reconcile(self.ledger, self.world.lookup)
        self.turns = ClaimExecutor(THREADS)
        self.executor = DaemonExecutor(THREADS, "repair")
        self.calls: dict[int, Stoppable] = {}
        """Those that run or hang."""
        self.running: set[tuple[int, str]] = set()

    def lookup(self, pool: str, name: str) -> Device | None:
        self.world.points("lookup")
        return self.find(pool, name) if (self.present / name).exists() else None

    async def do(self, call: Call) -> Event:
        match call.what:
            case "prepare" | "unprepare":
                return await self.for_kubelet(call)
            case "recover":
                return await self.recover(call)
            case "go on":
                return await self.go_on(call)
            case "notice":
                await self.reclaim.begin("notice", deadline=None, what="a test")
            case "cancel":
                await self.reclaim.cancel(everything=True)
            case "set forward":
                clock.set_forward(call.seconds)
        # Without a turn at the ledger: what the agent knows of it may be old in the next call.
        return Event(call.number, "answered")

    async def for_kubelet(self, call: Call) -> Event:
        """As the plugin's service does it."""
        stoppable = self.calls[call.number] = Stoppable(call, self.say)
        until = asyncio.get_running_loop().time() + call.seconds
        deadline = Deadline(until)
        work: Callable[[], object] = lambda: self.preparer.unprepare(call.uid, deadline)  # noqa: E731
        what, key = "unpreparing", b""
        if call.what == "prepare":
            what, key = "preparing", msgspec.json.encode(call.claim["status"])
            work = lambda: self.preparer.prepare(call.claim, deadline)  # noqa: E731
        event = Event(call.number, "answered")
        try:
            answer = await self.turns.run(call.uid, what, key, lambda: self.run(stoppable, call.uid, work), until)
        except AgentError as error:
            event = Event(call.number, "refused", type(error).__name__, str(error), isinstance(error, RetryableError))
        else:
            event.devices = answer if isinstance(answer, list) else []
            event.released = answer is True
        event.late_s = asyncio.get_running_loop().time() - until
        await self.quiet(call.uid)
        return self.look(call.number, event, stoppable)

    async def recover(self, call: Call) -> Event:
        stoppable = self.calls[call.number] = Stoppable(call, self.say)

        def apart(description: str, call: Callable[[], _T]) -> _T:
            """Leave behind what hangs, as ExecutorRunner does, which waits for it on the clock of the machine."""
            done = threading.Event()
            uid = description.rpartition(" ")[2]
            future = self.executor.submit(lambda: self.run(stoppable, uid, call))
            future.add_done_callback(lambda _: done.set())
            while not done.wait(0.001):
                if stoppable.hung.is_set() and stoppable.hung_on == uid:
                    raise RetryableError(f"{description} has not ended")
            return future.result()

        loop = asyncio.get_running_loop()
        report = await loop.run_in_executor(self.executor, partial(self.world.preparer.recover, apart))
        event = Event(call.number, "answered", problems=list(report.problems), busy=list(report.busy))
        return self.look(call.number, event, stoppable)

    async def go_on(self, call: Call) -> Event:
        hung = self.calls.pop(call.hung)
        hung.hung.clear()
        hung.go_on.put(call.how)
        await eventually_async(lambda: hung.go_on.empty() and (call.hung, hung.hung_on) not in self.running)
        await self.quiet(hung.call.uid)
        return self.look(call.number)

    def run(self, stoppable: Stoppable, uid: str, work: Callable[[], _T]) -> _T:
        self.running.add((stoppable.call.number, uid))
        try:
            return at_work(stoppable, uid, work)
        finally:
            self.running.discard((stoppable.call.number, uid))

    async def quiet(self, uid: str) -> None:
        """Wait until nothing is in work for a claim, except what hangs."""
        await eventually_async(
            lambda: (
                uid not in self.turns._work
                or any(one.hung.is_set() and one.call.uid == uid for one in self.calls.values())
            )
        )

    def look(self, number: int, event: Event | None = None, stoppable: Stoppable | None = None) -> Event:
        event = event or Event(number, "answered")
        with self.ledger.lease():
            event.entries = self.ledger.entries()
        event.claim_locks = sorted(self.world.preparer._claims._locks)
        event.device_locks = sorted(self.world.preparer._devices._locks)
        if stoppable is not None:
            event.fired = stoppable.fired
            if not stoppable.hung.is_set():
                self.calls.pop(stoppable.call.number, None)
        return event


async def live(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    loop, tasks = asyncio.get_running_loop(), set()

    def say(event: Event) -> None:
        loop.call_soon_threadsafe(writer.write, msgspec.json.encode(event) + b"\n")

    settings = msgspec.json.decode(await reader.readline(), type=AgentSettings)
    try:
        agent = Agent(settings, say)
        await agent.reclaim.start()
        say(Event(0, "ready", pid=os.getpid(), problems=agent.problems))
    except Exception:  # noqa: BLE001 - the test shows it
        say(Event(0, "broken", text=traceback.format_exc(), pid=os.getpid()))
        await reader.readline()
        return

    async def do(call: Call) -> None:
        try:
            say(await agent.do(call))
        except Exception as error:  # noqa: BLE001
            say(Event(call.number, "broken", type(error).__name__, traceback.format_exc()))

    while line := await reader.readline():
        task = asyncio.create_task(do(msgspec.json.decode(line, type=Call)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("ready", flush=True)
        listening.settimeout(None)
        while True:
            connection, _ = listening.accept()
            if not os.fork():
                listening.close()
                # Who started all this is gone: so is the agent.
                asyncio.run(live(connection))
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    main()
