"""The phases of `fleet.py`: what happens to the fleet, and what is measured in that time."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleet_agent import FleetAgent, SimulatedDevices
from fleet_counts import AuditLog, Request, Scrape, Usage, by_kind, connections, most_in_a_window, usage
from fleet_inventory import of_node, with_flap, with_notice
from fleet_observer import FleetObserver
from fleet_plane import API_SERVER, USER, FleetPlane
from fleet_table import Phase
from results import percentile

from dra_agent.host import Host
from dra_agent.inventory.model import Inventory

RIGHT_WITHIN_S = 300.0
"""The longest time that is waited for every slice to be right."""
SETTLE_S = 5.0
"""Seconds after an event for which requests that follow it are still counted."""
WINDOW_S = 0.1
DELAY_INTERVAL_S = 0.05
SURGE_SHARE = 0.1
"""Share of the nodes that a rolling update changes at a time: maxSurge of the deployment."""
RECLAIMED_SHARE = 0.1
"""Share of the nodes that are reclaimed at once."""
NOTICE = timedelta(minutes=2)
SELF = "agents"


class Fleet:
    """The agents by node, and the devices that they should publish."""

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        hosts: Sequence[tuple[Host, Inventory]],
        size: int,
        observer: FleetObserver,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._observer = observer
        self.devices: dict[str, SimulatedDevices] = {}
        self.inventories: dict[str, Inventory] = {}
        self.agents: dict[str, FleetAgent] = {}
        for number in range(size):
            node, (host, inventory) = f"node-{number:04}", hosts[number % len(hosts)]
            self.inventories[node] = of_node(inventory, node)
            self.devices[node] = SimulatedDevices(host, self.inventories[node], node)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return list(self.inventories)

    def some(self, share: float) -> list[str]:
        """Return a share of the nodes, distributed over the profiles."""
        nodes = self.nodes
        step = max(1, round(1 / share))
        # Odd: profiles repeat after an even number of nodes.
        return nodes[:: step - 1 if step % 2 == 0 else step][: math.ceil(len(nodes) * share)]

    def create(self, node: str, uid: str) -> FleetAgent:
        """Create an agent of a node, not started."""
        return FleetAgent(self._kubeconfig, node, self._folder / node, self.devices[node], uid=uid)

    async def open(self) -> None:
        """Do the local part of the start, which is distributed over as many hosts in production."""
        for node in self.nodes:
            self._observer.expect(node, self.inventories[node])
            self.agents[node] = self.create(node, "a")
            await self.agents[node].open()

    async def start(self) -> None:
        """Start the first agent of every node, all at once."""
        await asyncio.gather(*(agent.start() for agent in self.agents.values()))

    def flap(self, nodes: Sequence[str], *, ill: bool) -> None:
        """Change the health of one GPU of each of these nodes."""
        for node in nodes:
            inventory = with_flap(self.inventories[node]) if ill else self.inventories[node]
            self._observer.expect(node, inventory)
            self.agents[node].set_inventory(inventory)

    async def reclaim(self, nodes: Sequence[str]) -> None:
        """Announce the reclaim of these nodes."""
        for node in nodes:
            self._observer.expect(node, with_notice(self.inventories[node]))
        deadline = datetime.now(UTC) + NOTICE
        services = [service for node in nodes if (service := self.agents[node].reclaim) is not None]
        await asyncio.gather(
            *(one.begin("notice", deadline=deadline, description="the benchmark reclaims it") for one in services)
        )

    async def withdraw(self, nodes: Sequence[str]) -> None:
        """Withdraw the reclaim of these nodes."""
        for node in nodes:
            self._observer.expect(node, self.inventories[node])
        services = [service for node in nodes if (service := self.agents[node].reclaim) is not None]
        await asyncio.gather(*(one.cancel(everything=False) for one in services))

    async def update(self, nodes: Sequence[str], uid: str, limit_s: float) -> None:
        """Start a new agent next to the old one of each node, and stop the old ones once the new ones lead."""
        new = {node: self.create(node, uid) for node in nodes}
        old = {node: self.agents[node] for node in nodes}
        self.agents.update(new)
        try:
            await asyncio.gather(*(agent.open() for agent in new.values()))
            await asyncio.gather(*(agent.start() for agent in new.values()))
            async with asyncio.timeout(limit_s):
                while not all(agent.leadership.is_leader() for agent in new.values()):
                    await asyncio.sleep(0.1)
        finally:
            await asyncio.gather(*(agent.stop() for agent in old.values()))

    async def stop(self) -> None:
        """Stop all agents."""
        agents, self.agents = self.agents, {}
        await asyncio.gather(*(agent.stop() for agent in agents.values()), return_exceptions=True)


class Meter:
    """Counts what happens between `begin` and `end`."""

    def __init__(self, plane: FleetPlane) -> None:
        self._plane = plane
        self._audit = AuditLog(plane.audit, USER)
        first = plane.metrics()
        self._other_watches = first.watches
        self._other_connections = connections(plane.port)
        self._before: tuple[float, Scrape, dict[str, tuple[int, Usage]]] = (0.0, first, {})
        self.last: list[Request] = []
        """The requests of the last phase."""

    def watches(self) -> int:
        """Return the open watches of the agents."""
        return self._plane.metrics().watches - self._other_watches

    def begin(self) -> None:
        """Start a phase."""
        self._audit.read()
        self._before = (time.monotonic(), self._plane.metrics(), self._usage())

    def end(self, name: str, agents: int) -> Phase:
        """Return the counts of the phase."""
        began, scrape, before = self._before
        after, now = self._plane.metrics(), self._usage()
        self.last = self._audit.read()
        restarted = before[API_SERVER][0] != now[API_SERVER][0]
        sent, received = (0, 0) if restarted else (scrape.sent, scrape.received)
        cpu = {
            process: used.cpu_s - (before[process][1].cpu_s if before[process][0] == pid else 0.0)
            for process, (pid, used) in now.items()
        }
        times = [one.seconds * 1000 for one in self.last]
        return Phase(
            name=name,
            agents=agents,
            seconds=time.monotonic() - began,
            requests=by_kind(self.last),
            sent=after.sent - sent,
            received=after.received - received,
            watches=after.watches - self._other_watches,
            connections=connections(self._plane.port) - self._other_connections,
            cpu_s=cpu,
            resident={process: used.resident for process, (_, used) in now.items()},
            p50_ms=percentile(times, 0.5),
            p99_ms=percentile(times, 0.99),
        )

    def _usage(self) -> dict[str, tuple[int, Usage]]:
        pids = {**self._plane.pids, SELF: os.getpid()}
        return {name: (pid, usage(pid)) for name, pid in pids.items()}


class Phases:
    """Runs the phases on one fleet."""

    def __init__(self, plane: FleetPlane, fleet: Fleet, observer: FleetObserver, meter: Meter) -> None:
        self._plane = plane
        self._fleet = fleet
        self._observer = observer
        self._meter = meter
        self.longest_delay_s = 0.0
        """The longest delay of the event loop since the last phase ended."""

    async def watch_delay(self) -> None:
        """Record delays of the event loop: with many agents in one process, times include them."""
        time = asyncio.get_running_loop().time
        while True:
            began = time()
            await asyncio.sleep(DELAY_INTERVAL_S)
            self.longest_delay_s = max(self.longest_delay_s, time() - began - DELAY_INTERVAL_S)

    async def start_storm(self) -> Phase:
        """Start all agents at once."""
        await self._fleet.open()
        await asyncio.to_thread(self._meter.begin)
        starting = asyncio.create_task(self._fleet.start())
        began = time.monotonic()
        await starting
        right = await self._right(began)
        await asyncio.sleep(SETTLE_S)
        return await self._end("start storm", {"after all agents started at once": right})

    async def idle(self, seconds: float) -> Phase:
        """Do nothing."""
        await asyncio.to_thread(self._meter.begin)
        await asyncio.sleep(seconds)
        phase = await self._end("idle", {})
        phase.values["requests per agent and hour"] = phase.per_agent * 3600 / phase.seconds
        return phase

    async def restart(self) -> Phase:
        """Restart the API server; the health of a GPU of a tenth of the nodes changes while it is down."""
        nodes = self._fleet.some(RECLAIMED_SHARE)
        watches = await asyncio.to_thread(self._meter.watches)
        await asyncio.to_thread(self._meter.begin)
        await asyncio.to_thread(self._plane.stop_server)
        self._fleet.flap(nodes, ill=True)
        await asyncio.to_thread(self._plane.start_server)
        began = time.monotonic()
        right = await self._right(began)
        followed = await self._followed(watches, began)
        await asyncio.sleep(SETTLE_S)
        events = {"after the API server is ready": right, "and every watch is open again": followed}
        phase = await self._end("API server restart", events)
        lists = [one.received for one in self._meter.last if one.verb == "list"]
        phase.values["lists"] = len(lists)
        phase.values["most lists in 100 ms"] = most_in_a_window(lists, WINDOW_S)
        self._fleet.flap(nodes, ill=False)
        await self._right(time.monotonic())
        return phase

    async def rolling_update(self) -> Phase:
        """Replace all agents, a tenth at a time."""
        nodes = self._fleet.nodes
        surge = math.ceil(len(nodes) * SURGE_SHARE)
        await asyncio.to_thread(self._meter.begin)
        self._observer.disturbed.clear()
        began = time.monotonic()
        for first in range(0, len(nodes), surge):
            await self._fleet.update(nodes[first : first + surge], "b", RIGHT_WITHIN_S)
        right = await self._right(began)
        await asyncio.sleep(SETTLE_S)
        phase = await self._end("rolling update", {"and every agent is replaced": right})
        phase.values["nodes with wrong slices at any moment"] = len(self._observer.disturbed)
        return phase

    async def mass_reclaim(self) -> Phase:
        """Reclaim a tenth of the fleet at once, and withdraw it."""
        nodes = self._fleet.some(RECLAIMED_SHARE)
        await asyncio.to_thread(self._meter.begin)
        began = time.monotonic()
        await self._fleet.reclaim(nodes)
        tainted = await self._right(began)
        await asyncio.sleep(SETTLE_S)
        began = time.monotonic()
        await self._fleet.withdraw(nodes)
        right = await self._right(began)
        await asyncio.sleep(SETTLE_S)
        return await self._end("mass reclaim", {"after the notices": tainted, "after they end": right}, len(nodes))

    async def health_flap(self) -> Phase:
        """Change the health of one GPU on every node, and back."""
        events = {}
        await asyncio.to_thread(self._meter.begin)
        for name, ill in (("after GPUs fail", True), ("after they recover", False)):
            began = time.monotonic()
            self._fleet.flap(self._fleet.nodes, ill=ill)
            events[name] = await self._right(began)
            await asyncio.sleep(SETTLE_S)
        return await self._end("health flap", events)

    async def _right(self, began: float) -> float | None:
        found = await self._observer.wait_right(RIGHT_WITHIN_S)
        return None if found is None else time.monotonic() - began

    async def _followed(self, watches: int, began: float) -> float | None:
        while await asyncio.to_thread(self._meter.watches) < watches:
            if time.monotonic() - began > RIGHT_WITHIN_S:
                return None
            await asyncio.sleep(0.5)
        return time.monotonic() - began

    async def _end(self, name: str, right: dict[str, float | None], agents: int | None = None) -> Phase:
        phase = await asyncio.to_thread(self._meter.end, name, agents or len(self._fleet.nodes))
        phase.right_s = right
        phase.values["longest delay of the agents' event loop, s"] = self.longest_delay_s
        self.longest_delay_s = 0.0
        return phase
