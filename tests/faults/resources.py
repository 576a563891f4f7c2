"""Takes each resource away from an agent for seconds, at fifty moments of its life; afterwards all is as without that.

    make faults-resources                     # every moment, every resource (about an hour)
    make faults-resources ARGS='--every 20'   # a sample
    make faults-resources ARGS='--point 30 --fault threads'

A life: an agent starts, publishes, prepares and releases claims, sees devices leave, fail and return, loses its API
server, gets two notices that are withdrawn, a reload, a restart and a SIGKILL in a notice, and stops. It has 25 steps.
A shortage begins with a step or in the middle of it, whose time an undisturbed life shows. A process that ends in a
shortage of memory is started again, as a service manager does it. In any other shortage an agent that is ready lives.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

import dra_simulate
import preloaded
from dra_agent.errors import AgentError
from dra_agent.reclaim.control import Cancel, Start, Status, send_request
from dra_simulate import inject
from fake_apiserver.fake import FakeApi
from faults import run as campaign
from faults.disk import Disk, build
from faults.run import Selection, Termination, exit_code
from faults.server import BrokenPromiseError, check_pools, devices, published, tainted
from faults.shortage import PATCH, RESOURCES, VARIABLE, Log, Shortages, give_away
from kubelet_plugin.fake_kubelet import Driver, FakeKubelet
from preloaded import Command

PROFILE = "l40s"
GPU, OTHER_GPU = "gpu-0000-01-00-0", "gpu-0000-41-00-0"
OTHER_ADDRESS = "0000:41:00.0"
DEVICES = 9
"""Number of devices of the profile, in two pools; an adapter with virtual functions is not published."""
SHORTAGE_S = 5.0
DEADLINE_S = 120.0
"""For each step, also one in a shortage."""
RESTART_DELAY_S = 2.0
"""As `RestartSec` of the service."""
STOP_TIMEOUT_S = 5.0
"""Seconds after which the agent is asked to stop again."""
MAX_LOG_BYTES = 4 << 20
"""A life without a shortage logs a twentieth of it."""
POLL_INTERVAL_S = 0.02


@dataclass(frozen=True)
class Options:
    """How long a shortage lasts, and how long each step may take."""

    shortage_s: float = SHORTAGE_S
    deadline_s: float = DEADLINE_S


class Life:
    """One agent from its first start to its last stop, with the world around it."""

    def __init__(self, folder: Path, library: Path, options: Options) -> None:
        self.options = options
        self.folder, self.state, self.cdi = folder, folder / "state", folder / "cdi"
        self.host = self.state / "simulated" / PROFILE
        dra_simulate.build(PROFILE, self.host)
        self.cdi.mkdir()
        give_away(folder)
        self.log = Log(folder / "log")
        self.disk = Disk(library, folder / "disk", roots=[self.state, self.cdi], excluded=[self.state / "simulated"])
        self.shortages = Shortages(lambda: self.agent.pid if self.agent is not None else None, self.disk, self.log)
        self.api = FakeApi()
        self.api.start()
        self.api.put("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
        self.kubelet = FakeKubelet(folder / "k")
        self.agent: Command | None = None
        self.is_wanted = False
        """Whether the service manager starts an agent that has ended."""
        self.ends = 0
        """How often it ended by itself after it had been ready."""
        self.claims: dict[str, tuple[str, str, str]] = {}
        self.responses: dict[str, Any] = {}
        self.at_first: set[str] = set()
        self.durations_s: list[float] = []
        self.last_response = ""
        """Of a probe or scrape that failed."""

    async def run(self, moment: int | None = None, shortage: str = "", durations_s: list[float] | None = None) -> None:
        """Live; the shortage begins at this moment. `durations_s` are those of an undisturbed life."""
        manager = asyncio.create_task(self._manage())
        taking: asyncio.Task[None] | None = None
        try:
            for number, (name, step) in enumerate(STEPS.items()):
                if moment is not None and number == moment // 2:
                    delay_s = durations_s[number] / 2 if moment % 2 and durations_s is not None else 0.0
                    taking = asyncio.create_task(self._take_away(shortage, delay_s))
                    await asyncio.sleep(0)
                started = time.monotonic()
                try:
                    await asyncio.wait_for(step(self), self.options.deadline_s)
                except TimeoutError:
                    raise BrokenPromiseError(
                        f"{name}: not done after {self.options.deadline_s:.0f} s {self.last_response}"
                    ) from None
                self.durations_s.append(time.monotonic() - started)
            if taking is not None:
                await taking
            await asyncio.to_thread(self.log.close)
            self._check_log(shortage)
        finally:
            manager.cancel()
            if taking is not None:
                taking.cancel()
            await asyncio.gather(manager, *([taking] if taking else ()), return_exceptions=True)
            await self._close()

    async def _take_away(self, shortage: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self.shortages.begin(shortage)
        try:
            await asyncio.sleep(self.options.shortage_s)
        finally:
            self.shortages.end(shortage)

    async def _manage(self) -> None:
        """Start an agent that ended by itself, as a service manager does."""
        while True:
            if self.is_wanted and self.agent is not None and self.agent.poll() is not None:
                self.ends += "info ready" in self.log.text()[self._log_start :]
                await asyncio.sleep(RESTART_DELAY_S)
                if self.is_wanted:
                    self._start()
            await asyncio.sleep(POLL_INTERVAL_S)

    def _start(self) -> None:
        places = {"state-dir": "state", "cdi-dir": "cdi", "kubelet-dir": "k", "run-dir": "run"}
        arguments = ["run", "--no-standalone", "--node-name", "node-a", "--simulate", PROFILE, "--log-level", "debug"]
        arguments += [f"--{name}={self.folder / place}" for name, place in places.items()]
        arguments += ["--health-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
        arguments += ["--kubeconfig", str(self.api.kubeconfig(self.folder / "kubeconfig"))]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")} | {
            "DRA_AGENT_DEBUG": "1"
        }
        config = self.folder / "config.toml"
        config.write_text("[health]\nevent_seconds = 2\nrecovery_seconds = 1\n")
        arguments += ["--config", str(config)]
        variables |= self.disk.environment | {VARIABLE: self.shortages.current}
        self._log_start = len(self.log.text())
        stream = self.log.open()
        try:
            self.agent = Command(arguments, stdout=stream, stderr=stream, env=variables, patch=PATCH)
        finally:
            os.close(stream)
        self.is_wanted = True

    async def _stop(self, number: int = signal.SIGTERM) -> None:
        """End the agent by a signal; the kubelet closes its connections."""
        self.is_wanted = False
        assert self.agent is not None
        self.agent.send_signal(number)
        try:
            await asyncio.to_thread(self.agent.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # In a notice it waits for the release of claims; the second one ends it at once.
            self.agent.send_signal(number)
            await asyncio.to_thread(self.agent.wait, DEADLINE_S)
        for driver in self.kubelet.drivers.values():
            await driver.channel.close()
        self.kubelet.drivers.clear()
        self.kubelet.seen.clear()

    async def _close(self) -> None:
        self.is_wanted = False
        await self.kubelet.close()
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            await asyncio.to_thread(self.agent.wait)
        await asyncio.to_thread(self.log.close)
        self.disk.close()
        await asyncio.to_thread(self.api.stop)

    def _check_log(self, shortage: str) -> None:
        text = self.log.text()
        found = re.search(r"^.*\nTraceback (?:.|\n)*?(?=^20\d\d-|\Z)", text, re.MULTILINE)
        if found and shortage != "memory":
            raise BrokenPromiseError(f"a traceback in the log:\n{found[0]}")
        if len(text) > MAX_LOG_BYTES:
            raise BrokenPromiseError(f"{len(text)} bytes of log")
        if self.ends and shortage != "memory":
            raise BrokenPromiseError(f"an agent that was ready ended {self.ends} times")

    # Steps. Each repeats what users and kubelets repeat, until it is done.

    async def start(self) -> None:
        self._start()
        await self._driver()

    async def publish(self) -> None:
        await _until(lambda: len(published(self.api)) == DEVICES)
        self.at_first = published(self.api)

    async def prepare(self, name: str, device: str) -> None:
        self.claims[name] = self._allocate(name, device)
        self.responses[name] = await self._call("prepare", name)

    async def repeat(self, name: str) -> None:
        if await self._call("prepare", name) != self.responses[name]:
            raise BrokenPromiseError("a repeat of prepare has another response")

    async def unprepare(self, name: str) -> None:
        await self._call("unprepare", name)
        self.api.remove("resourceclaims", name, "default")

    async def unplug(self) -> None:
        inject.unplug(self.host, OTHER_ADDRESS)
        await _until(lambda: OTHER_GPU not in published(self.api))

    async def replug(self) -> None:
        inject.replug(self.host, OTHER_ADDRESS)
        await _until(lambda: published(self.api) == self.at_first)

    async def fail(self) -> None:
        inject.xid(self.host, OTHER_ADDRESS, 95)
        await _until(lambda: self._is_tainted(OTHER_GPU))

    async def recover(self) -> None:
        await _until(lambda: not self._is_tainted(OTHER_GPU))

    async def lose_watches(self) -> None:
        self.api.compact()
        self.api.end_watches()
        await self.repeat("first")

    async def lose_server(self) -> None:
        self.api.fail(503, times=5)
        await self.prepare("second", OTHER_GPU)

    async def probe(self) -> None:
        await _until(lambda: self._get("/healthz") == 200 and self._get("/readyz") == 200)

    async def scrape(self) -> None:
        await _until(lambda: self._get("/metrics") == 200)

    async def read_status(self) -> None:
        await self._request(Status())

    async def notice(self) -> None:
        await self._request(Start(description="maintenance"))
        await _until(lambda: all(tainted(self.api).values()))

    async def second_notice(self) -> None:
        await self._request(Start(description="the host fails", seconds=7200))
        await _until(lambda: all(tainted(self.api).values()))

    async def withdraw(self) -> None:
        await self._request(Cancel(everything=True))
        await _until(lambda: not any(tainted(self.api).values()))

    async def reload(self) -> None:
        assert self.agent is not None
        self.agent.send_signal(signal.SIGHUP)
        await self.probe()

    async def restart(self, number: int) -> None:
        with suppress(KeyError):
            await self._stop(number)
        self._start()
        await self._driver()
        await _until(lambda: len(published(self.api)) == DEVICES and all(tainted(self.api).values()))

    async def end(self) -> None:
        await self.unprepare("first")
        await _until(lambda: published(self.api) == self.at_first and not any(tainted(self.api).values()))
        check_pools(self.api)
        if files := [path.name for path in self.cdi.rglob("*") if path.is_file()]:
            raise BrokenPromiseError(f"CDI files of released claims: {files}")
        await self.probe()
        await self._stop()
        if left := [path for path in self.state.rglob("*.tmp") if "simulated" not in path.parts]:
            raise BrokenPromiseError(f"files that should not be left: {left}")

    # What steps have in common.

    async def _driver(self) -> Driver:
        while True:
            with suppress(grpc.aio.AioRpcError, AssertionError, OSError):
                return await self.kubelet.driver()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _call(self, method: str, name: str) -> Any:
        """Call as the kubelet does: an error and a lost connection are retried."""
        while True:
            driver = await self._driver()
            with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
                response = (await driver.call(method, [self.claims[name]])).claims[self.claims[name][2]]
                if not response.error:
                    return response
            await self.kubelet.reconcile()
            await asyncio.sleep(0.1)

    async def _request(self, request: Any) -> Any:
        """Send an operator's request until it is answered."""
        while True:
            with suppress(AgentError, OSError):
                return await asyncio.to_thread(send_request, self.state, request)
            await asyncio.sleep(0.1)

    def _allocate(self, name: str, device: str) -> tuple[str, str, str]:
        result = {"request": "gpu", "driver": "dra-agent.internal", "pool": "node-a/gpu", "device": device}
        meta = {"namespace": "default", "name": name, "uid": str(uuid.uuid4())}
        status = {"allocation": {"devices": {"results": [result]}}}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta}
        made = self.api.put("resourceclaims", {**claim, "spec": {"devices": {}}, "status": status})
        return "default", name, made["metadata"]["uid"]

    def _is_tainted(self, name: str) -> bool:
        return any(device.get("taints") for device in devices(self.api) if device["name"] == name)

    def _get(self, path: str) -> int:
        name = "port" if path == "/metrics" else "probes"
        ports = re.findall(rf" {name}=(\d+)", self.log.text()[self._log_start :])
        if not ports:
            return 0
        port = ports[-1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                self.last_response = f"{path}: {error.code} {error.read().decode()}"
                return error.code
        except OSError as error:
            self.last_response = f"{path}: {error}"
            return 0


Step = Callable[[Life], Awaitable[None]]
STEPS: dict[str, Step] = {
    "start": Life.start,
    "publish": Life.publish,
    "prepare": lambda life: life.prepare("first", GPU),
    "repeat": lambda life: life.repeat("first"),
    "unplug a device": Life.unplug,
    "replug it": Life.replug,
    "fail a device": Life.fail,
    "recover it": Life.recover,
    "lose all watches": Life.lose_watches,
    "lose the API server": Life.lose_server,
    "repeat the second claim": lambda life: life.repeat("second"),
    "release the second claim": lambda life: life.unprepare("second"),
    "probe": Life.probe,
    "scrape": Life.scrape,
    "read the status": Life.read_status,
    "notice": Life.notice,
    "second notice": Life.second_notice,
    "withdraw": Life.withdraw,
    "reload": Life.reload,
    "prepare a third claim": lambda life: life.prepare("third", OTHER_GPU),
    "release the third claim": lambda life: life.unprepare("third"),
    "notice again": Life.notice,
    "restart in the notice": lambda life: life.restart(signal.SIGTERM),
    "kill in the notice": lambda life: life.restart(signal.SIGKILL),
    "withdraw again, and end": lambda life: _in_turn(life.withdraw, life.end),
}
"""By name, in the order of a life. The second half of a step is a moment, too."""


async def _in_turn(*steps: Callable[[], Awaitable[None]]) -> None:
    for step in steps:
        await step()


async def _until(condition: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(condition):
        await asyncio.sleep(POLL_INTERVAL_S)


class Worker:
    """Runs lives on the loop of all workers: gRPC has one loop in a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, library: Path, options: Options) -> None:
        self._loop, self._library, self._options = loop, library, options
        self.durations_s: list[float] = []
        self._log = ""

    def case(self, moment: int, shortage: str) -> str:
        """Live with one shortage; return its name, and whether the agent was started again."""
        life = self._live(moment, shortage)
        return f"{shortage}, started again" if life.ends else shortage

    def rehearse(self) -> list[float]:
        """Live without a shortage; return the seconds of each step."""
        return self._live(None, "").durations_s

    def log(self) -> str:
        """Return the log of the last agent."""
        return self._log

    def _live(self, moment: int | None, shortage: str) -> Life:
        # Short: sockets of a kubelet are created below it.
        with tempfile.TemporaryDirectory(prefix="dra-") as folder:
            life = Life(Path(folder), self._library, self._options if moment is not None else Options())
            try:
                running = life.run(moment, shortage, self.durations_s)
                asyncio.run_coroutine_threadsafe(running, self._loop).result()
            finally:
                self._log = life.log.text()
            return life


def moments() -> list[str]:
    """Return the names of all moments."""
    return [f"{name}, {half}" for name in STEPS for half in ("at its begin", "in the middle")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    Selection.add_arguments(parser, RESOURCES)
    parser.add_argument("--seconds", type=float, default=SHORTAGE_S, help=f"of a shortage (default: {SHORTAGE_S:.0f})")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help=f"of a step (default: {DEADLINE_S:.0f})")
    args = parser.parse_args()
    options, selection = Options(args.seconds, args.deadline), Selection.of(args, Path("target/faults/resources"))
    with Termination() as termination, tempfile.TemporaryDirectory(prefix="dra-faults-") as folder:
        os.environ["LD_PRELOAD"] = str(library := build(Path(folder)))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            workers = [Worker(loop, library, options) for _ in range(selection.jobs)]
            try:
                durations_s = workers[0].rehearse()
            except BrokenPromiseError as error:
                print("\n".join(workers[0].log().splitlines()[-campaign.LOG_LINES :]), error, sep="\n")
                return 1
            print(
                f"a life of {sum(durations_s):.0f} s, {len(moments())} moments, {len(RESOURCES)} resources", flush=True
            )
            for worker in workers:
                worker.durations_s = durations_s
            chosen = list(selection.cases(len(moments()), RESOURCES))
            saved = selection.saved(len(chosen))
            return exit_code(campaign.run(chosen, workers, moments().__getitem__, termination, saved))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            preloaded.close()


if __name__ == "__main__":
    sys.exit(main())
