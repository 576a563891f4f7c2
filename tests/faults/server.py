"""Injects every fault once into every API request of an agent; what it prepares and publishes stays correct.

    make faults-server                     # every request, every fault (about an hour)
    make faults-server ARGS='--every 10'   # a sample

A case: an agent starts and publishes, prepares a claim for a kubelet and prepares it again, taints its devices on a
notice, withdraws the taints, releases the claim, and stops. One of its requests gets a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dra_simulate
import preloaded
from dra_agent.reclaim.control import Cancel, Start, send_request
from fake_apiserver.fake import FakeApi
from fake_apiserver.faults import Fault
from faults import run as campaign
from faults.run import Selection, Termination, exit_code
from kubelet_plugin.fake_kubelet import Driver, FakeKubelet
from preloaded import Command

PROFILE = "l40s"
DRIVER = "dra-agent.internal"
GPU = "gpu-0000-01-00-0"
DEVICES = 9
"""Number of devices of the profile, in two pools; an adapter with virtual functions is not published."""
DEADLINE_S = 120.0
FAULTS: dict[str, Callable[[], Fault]] = {
    "reset": lambda: Fault("reset"),
    "reset after it was done": lambda: Fault("reset-after"),
    "truncated": lambda: Fault("truncate"),
    "late": lambda: Fault("late", seconds=1.5),
    "hangs": lambda: Fault("hang", seconds=3.0),
    "stale list": lambda: Fault("stale"),
    "409": lambda: Fault(status=409),
    "410": lambda: Fault(status=410),
    "429": lambda: Fault(status=429, headers={"Retry-After": "1"}),
    "500": lambda: Fault(status=500),
    "503 three times": lambda: Fault(status=503, times=3),
    "a page of a proxy": lambda: Fault(status=200, body="<html>log in</html>", content_type="text/html"),
}


class BrokenPromiseError(AssertionError):
    """A guarantee of the agent does not hold."""


@dataclass
class Case:
    """One agent, from start to stop."""

    folder: Path
    fault: Fault | None = None
    requests: list[str] = field(default_factory=list)
    """"VERB path" of each."""

    async def run(self) -> None:
        host = self.folder / "state/simulated" / PROFILE
        await asyncio.to_thread(dra_simulate.build, PROFILE, host)
        (self.folder / "cdi").mkdir()
        api = FakeApi()
        api.start()
        api.put("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
        if self.fault is not None:
            api.faults.add(self.fault)
        kubelet = FakeKubelet(self.folder / "k")
        agent = self._start(api)
        try:
            await self._run_workload(api, await kubelet.driver(), agent)
            self.requests = [f"{seen.method} {seen.path}" for seen in api.requests]
        finally:
            await kubelet.close()
            if agent.poll() is None:
                agent.kill()
            await asyncio.to_thread(agent.wait)
            await asyncio.to_thread(api.stop)
        if "Traceback" in self.log():
            raise BrokenPromiseError("a traceback in the log")

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, api: FakeApi) -> Command:
        places = {"state-dir": "state", "cdi-dir": "cdi", "kubelet-dir": "k"}
        arguments = ["run", "--no-standalone", "--node-name", "node-a", "--simulate", PROFILE]
        arguments += [f"--{name}={self.folder / place}" for name, place in places.items()]
        arguments += ["--kubeconfig", str(api.kubeconfig(self.folder / "kubeconfig"))]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        with (self.folder / "log").open("wb") as log:
            return Command(arguments, stdout=log, stderr=log, env=variables)

    async def _run_workload(self, api: FakeApi, driver: Driver, agent: Command) -> None:
        await _until(lambda: len(published(api)) == DEVICES, "not every device is published", api)
        published_at_first = published(api)
        claim = allocate(api)
        response = await call(driver, "prepare", claim)
        if await call(driver, "prepare", claim) != response:
            raise BrokenPromiseError("a repeat of prepare has another answer")
        await asyncio.to_thread(send_request, self.folder / "state", Start(description="maintenance"))
        await _until(lambda: all(tainted(api).values()), "not every device is tainted", api)
        await asyncio.to_thread(send_request, self.folder / "state", Cancel(everything=True))
        await _until(lambda: not any(tainted(api).values()), "a device is still tainted", api)
        await call(driver, "unprepare", claim)
        if published(api) != published_at_first:
            raise BrokenPromiseError(
                f"published at first {sorted(published_at_first)}, and then {sorted(published(api))}"
            )
        check_pools(api)
        leftovers = list((self.folder / "cdi").iterdir())
        if leftovers:
            raise BrokenPromiseError(f"CDI files of a released claim: {leftovers}")
        agent.send_signal(signal.SIGTERM)
        await asyncio.to_thread(agent.wait, DEADLINE_S)


def devices(api: FakeApi) -> list[dict[str, Any]]:
    """Return every device in every slice; a device in two slices appears twice."""
    return [device for one in api.objects("resourceslices") for device in one["spec"].get("devices", ())]


def published(api: FakeApi) -> set[str]:
    return {device["name"] for device in devices(api)}


def tainted(api: FakeApi) -> dict[str, bool]:
    return {
        device["name"]: any(t["effect"] == "NoExecute" for t in device.get("taints", ())) for device in devices(api)
    }


def check_pools(api: FakeApi) -> None:
    """Check that every pool is complete, of one generation, and has each device once."""
    named = Counter(device["name"] for device in devices(api))
    if twice := [name for name, count in named.items() if count > 1]:
        raise BrokenPromiseError(f"published twice: {twice}")
    pools: dict[str, list[dict[str, Any]]] = {}
    for one in api.objects("resourceslices"):
        pools.setdefault(one["spec"]["pool"]["name"], []).append(one["spec"]["pool"])
    for name, pool in pools.items():
        newest = max(one["generation"] for one in pool)
        current = [one for one in pool if one["generation"] == newest]
        if len(current) != len(pool) or any(one["resourceSliceCount"] != len(pool) for one in pool):
            raise BrokenPromiseError(f"pool {name} is not whole: {pool}")


def allocate(api: FakeApi) -> tuple[str, str, str]:
    """Create an allocated claim in the API server; return (namespace, name, uid)."""
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-a/gpu", "device": GPU}
    created = api.put(
        "resourceclaims",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": "one", "uid": str(uuid.uuid4())},
            "spec": {"devices": {}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        },
    )
    return "default", "one", created["metadata"]["uid"]


async def call(driver: Driver, method: str, claim: tuple[str, str, str]) -> Any:
    """Call as the kubelet does: an error is retried."""
    end = time.monotonic() + DEADLINE_S
    while True:
        response = (await driver.call(method, [claim])).claims[claim[2]]
        if not response.error:
            return response
        if time.monotonic() > end:
            raise BrokenPromiseError(f"{method} is not done after {DEADLINE_S:.0f} s: {response.error}")
        await asyncio.sleep(0.1)


async def _until(condition: Callable[[], bool], otherwise: str, api: FakeApi) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise BrokenPromiseError(f"{otherwise} after {DEADLINE_S:.0f} s: {tainted(api)}")
        await asyncio.sleep(0.02)


def with_fault(point: int, fault: str, folder: Path) -> Case:
    """Return a case in which request number `point` gets a fault; its run raises BrokenPromiseError."""
    case = Case(folder, FAULTS[fault]())
    assert case.fault is not None
    case.fault.skip = point
    return case


def run(point: int, fault: str, folder: Path) -> None:
    """Run one case in which request number `point` gets a fault; raises BrokenPromiseError."""
    asyncio.run(with_fault(point, fault, folder).run())


class Worker:
    """Runs cases on the loop of all workers: gRPC has one loop in a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._log = ""

    def case(self, point: int, fault: str) -> str:
        """Run one case; return the fault."""
        with tempfile.TemporaryDirectory(prefix="dra-faults-") as folder:
            case = with_fault(point, fault, Path(folder))
            try:
                asyncio.run_coroutine_threadsafe(case.run(), self._loop).result()
            finally:
                self._log = case.log()
        return fault

    def log(self) -> str:
        """Return the log of the last agent."""
        return self._log


def rehearse(folder: Path) -> list[str]:
    """Run one case without a fault; return the requests of the agent."""
    case = Case(folder)
    asyncio.run(case.run())
    return case.requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Selection.add_arguments(parser, FAULTS)
    selection = Selection.of(parser.parse_args(), Path("target/faults/server"))
    with Termination() as termination:
        with tempfile.TemporaryDirectory(prefix="dra-rehearsal-") as folder:
            requests = rehearse(Path(folder))
        print(f"{len(requests)} requests in a case: {dict(Counter(one.split()[0] for one in requests))}", flush=True)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            workers = [Worker(loop) for _ in range(selection.jobs)]
            chosen = list(selection.cases(len(requests), FAULTS))
            saved = selection.saved(len(chosen))
            return exit_code(campaign.run(chosen, workers, requests.__getitem__, termination, saved))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            preloaded.close()


if __name__ == "__main__":
    sys.exit(main())
