"""Many claims, prepared and unprepared, with faults and restarts: resource use does not grow and nothing is left.

    make soak                        # 100,000 pairs
    make soak MINUTES=10             # for 10 minutes
    make soak ARGS='--pairs 5000'

A real agent in Kubernetes mode runs on a simulated host, with a kubelet on its sockets and an HTTP API server. One
agent handles nine tenths of the pairs while its memory is measured. Agents that are killed handle the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

import dra_simulate
from dra_agent.malloc import without_thread_caches
from dra_simulate import inject
from fake_apiserver.fake import FakeApi
from kubelet_plugin.fake_kubelet import Driver, FakeKubelet

PROFILE = "dgx-h100"
DRIVER = "dra-agent.internal"
GPUS = [f"gpu-0000-{bus}-00-0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
UNPLUGGED = GPUS[-1]
"""The device that is unplugged and replugged while the others are used."""
CONCURRENCY = 4
WARM_UP = 2000
"""Pairs before the first measurement of memory."""
DISTURB_EVERY = 250
"""Pairs between two disturbances."""
KINDS = ("unplug", "xid", "server error", "throttled", "reset", "late", "watches end", "history lost")
QUIET_S = 75.0
"""Seconds of one reading of memory: the agent returns free memory to the kernel once a minute."""
DEADLINE_S = 120.0
KEPT_FILES = frozenset({"state/health.json"})
"""Files that the agent writes at the first event of their kind and keeps: the warm-up may have had none."""


@dataclass(frozen=True)
class Usage:
    """The resources of the agent's processes. Memory is in KiB; pages that they share count once."""

    pss: int
    anonymous: int
    """The part of `pss` that no file backs. The rest also changes when other processes map or unmap the libraries."""
    descriptors: int
    threads: int
    processes: int


class SoakError(AssertionError):
    """A resource grew, was left, or a call failed until its deadline."""


class Soak:
    """The machine: host, API server, kubelet and the current agent."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.state, self.cdi = folder, folder / "state", folder / "cdi"
        self.host = self.state / "simulated" / PROFILE
        dra_simulate.build(PROFILE, self.host)
        self.cdi.mkdir()
        self.api = FakeApi()
        self.api.start()
        self.api.put("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
        self.kubelet = FakeKubelet(folder / "k")
        self._credentials = self.api.kubeconfig(folder / "kubeconfig")
        self.random = random.Random(seed)
        self._names = itertools.count()
        self._unplugged = False
        self._watched: set[str] = set()
        self.agent: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.refused: Counter[str] = Counter()
        self.disturbed: Counter[str] = Counter()

    async def close(self) -> None:
        await self.kubelet.close()
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()
        self.api.stop()

    def log(self) -> str:
        return (self.folder / f"log-{self.starts}").read_text(errors="replace")

    async def start(self) -> Driver:
        """Start an agent, and wait until it is registered at the kubelet and ready."""
        self.starts += 1
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "dra_agent",
            "run",
            "--no-standalone",
            "--node-name",
            "node-a",
        ]
        command += ["--simulate", PROFILE, "--state-dir", self.state, "--cdi-dir", self.cdi, "--log-level", "warning"]
        command += ["--kubelet-dir", self.kubelet.directory, "--kubeconfig", self._credentials]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        # As the service and the image start it.
        variables |= without_thread_caches({})
        with (self.folder / f"log-{self.starts}").open("wb") as log:
            self.agent = subprocess.Popen(command, stdout=log, stderr=log, env=variables)
        return await self.kubelet.driver()

    async def end(self, number: signal.Signals) -> None:
        """End the agent by a signal, and remove its sockets from the kubelet."""
        assert self.agent is not None
        self.agent.send_signal(number)
        await asyncio.to_thread(self.agent.wait, DEADLINE_S)
        for driver in self.kubelet.drivers.values():
            await driver.channel.close()
        self.kubelet.drivers.clear()
        self.kubelet.seen.clear()

    async def pairs(self, driver: Driver, count: int, until: Callable[[], bool] = lambda: False) -> int:
        """Prepare and unprepare `count` claims, several in parallel; return their number."""
        numbers = iter(range(count))
        done = 0

        async def run_in_sequence(devices: list[str]) -> None:
            nonlocal done
            for number in numbers:
                if until():
                    return
                if number % DISTURB_EVERY == DISTURB_EVERY - 1:
                    self.disturb()
                await self.pair(driver, self.random.choice(devices))
                done += 1

        steady = GPUS[:-1]
        groups = [steady[index::CONCURRENCY] for index in range(CONCURRENCY)]
        await asyncio.gather(*(run_in_sequence(group) for group in groups))
        return done

    async def pair(self, driver: Driver, device: str) -> None:
        """Allocate, prepare, unprepare and delete one claim. The kubelet repeats failed calls."""
        claim = self.allocate(device)
        await self.retry_until_done(driver, "prepare", claim)
        if self.random.random() < 0.1:
            await self.retry_until_done(driver, "prepare", claim)
        await self.retry_until_done(driver, "unprepare", claim)
        self.api.remove("resourceclaims", claim[1], claim[0])

    def allocate(self, device: str) -> tuple[str, str, str]:
        """Create an allocated claim in the API server; return (namespace, name, uid)."""
        name, uid = f"claim-{next(self._names)}", str(uuid.uuid4())
        result = {"request": "gpu", "driver": DRIVER, "pool": "node-a/gpu", "device": device}
        claim = {"metadata": {"namespace": "default", "name": name, "uid": uid}, "spec": {"devices": {}}}
        status = {"allocation": {"devices": {"results": [result]}}}
        meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        made = self.api.put("resourceclaims", {**meta, **claim, "status": status})
        return "default", name, made["metadata"]["uid"]

    async def retry_until_done(self, driver: Driver, method: str, claim: tuple[str, str, str]) -> Any:
        """Repeat the call until it succeeds."""
        end = time.monotonic() + DEADLINE_S
        while True:
            answer = (await driver.call(method, [claim])).claims[claim[2]]
            if not answer.error:
                return answer
            self.refused[answer.error.partition(":")[0][:60]] += 1
            if time.monotonic() > end:
                raise SoakError(f"{method} of {claim[1]} is not done after {DEADLINE_S:.0f} s: {answer.error}")
            await asyncio.sleep(0.05)

    def disturb(self, kind: str = "") -> None:
        """Cause a fault that is common on nodes; one of KINDS, or a random one."""
        kind = kind or self.random.choice(KINDS)
        self.disturbed[kind] += 1
        match kind:
            case "unplug":
                address = UNPLUGGED.removeprefix("gpu-").replace("-", ":", 2).replace("-", ".")
                (inject.replug if self._unplugged else inject.unplug)(self.host, address)
                self._unplugged = not self._unplugged
            case "xid":
                inject.xid(self.host, "0", 13)  # An application fault: reported, and harmless.
            case "server error":
                self.api.fail(500, times=3)
            case "throttled":
                self.api.fail(429, times=2, retry_after=1)
            case "reset":
                self.api.reset(times=3)
            case "late":
                self.api.late(0.5, times=2)
            case "watches end":
                self.api.end_watches()
            case "history lost":
                self.api.compact()
                self.api.end_watches()

    async def wait_until_idle(self) -> None:
        """End every disturbance, and wait until the agent is idle."""
        self.api.faults.clear()
        if self._unplugged:
            address = UNPLUGGED.removeprefix("gpu-").replace("-", ":", 2).replace("-", ".")
            inject.replug(self.host, address)
            self._unplugged = False
        self._watched |= self.watched()
        self.api.compact()
        self.api.requests.clear()
        # Every watch is started again: a watch that a fault ended would be missing from the count of connections.
        self.api.end_watches()
        end = time.monotonic() + DEADLINE_S
        while self.devices() != set(GPUS) or not self._watched <= self.watched():
            if time.monotonic() > end:
                missing = sorted(set(GPUS) - self.devices()), sorted(self._watched - self.watched())
                raise SoakError(f"not published: {missing[0]}, not watched: {missing[1]}")
            await asyncio.sleep(0.1)

    def watched(self) -> set[str]:
        """The paths watched since the last reset of the recorded requests."""
        return {seen.path for seen in self.api.requests if seen.watch}

    def devices(self) -> set[str]:
        """The GPUs in the slices of the API server."""
        slices = self.api.objects("resourceslices")
        named = {device["name"] for machine in slices for device in machine["spec"].get("devices", ())}
        return {name for name in named if name.startswith("gpu-")}

    def usage(self) -> Usage:
        """The current resources of the agent and its children."""
        assert self.agent is not None
        pids = [self.agent.pid, *_children(self.agent.pid)]
        return Usage(
            pss=sum(_memory(pid, "Pss:") for pid in pids),
            anonymous=sum(_memory(pid, "Pss_Anon:") for pid in pids),
            descriptors=sum(_count(Path(f"/proc/{pid}/fd")) for pid in pids),
            threads=sum(_count(Path(f"/proc/{pid}/task")) for pid in pids),
            processes=len(pids),
        )

    async def settled_usage(self, seconds: float) -> Usage:
        """The minimum of several readings, to exclude temporary use."""
        readings: list[Usage] = []
        end = time.monotonic() + seconds
        while not readings or time.monotonic() < end:
            readings.append(self.usage())
            await asyncio.sleep(0.5)
        # A worker that ended is started again soon: a reading without it is too small.
        most = max(reading.processes for reading in readings)
        whole = (vars(reading).values() for reading in readings if reading.processes == most)
        return Usage(*(min(column) for column in zip(*whole, strict=True)))

    def files(self) -> set[str]:
        """Every file of the agent. Numbers at the end of journal names are removed."""
        found = {str(path.relative_to(self.folder)) for root in (self.state, self.cdi) for path in root.rglob("*")}
        return {name.rstrip("0123456789") for name in found if "simulated" not in name}

    def slices(self) -> int:
        return len(self.api.objects("resourceslices"))


def _count(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in _read(task / "children").split()]
    return found


def _memory(pid: int, field: str) -> int:
    for line in _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    """Return no text for a thread or process that has ended since it was listed."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def soak(
    machine: Soak, pairs: int, *, warm_up: int, quiet_s: float, restarts: int, until: Callable[[], bool]
) -> float:
    """Run the soak, and print what it measures; return the growth of memory in MiB. Raises SoakError for leftovers."""
    driver = await machine.start()
    await machine.pairs(driver, warm_up, until)
    for kind in KINDS:
        machine.disturb(kind)  # The agent allocates what it keeps for each kind now.
    await machine.wait_until_idle()
    before, files, slices = await machine.settled_usage(quiet_s), machine.files() | KEPT_FILES, machine.slices()
    started = time.monotonic()
    done = await machine.pairs(driver, pairs, until)
    seconds = time.monotonic() - started
    await machine.wait_until_idle()
    after = await machine.settled_usage(quiet_s)
    first, last = before.anonymous / 1024, after.anonymous / 1024
    # Printed before what follows, which can fail: the run took long.
    print(
        f"{done} pairs in {seconds:.0f} s ({seconds / max(done, 1) * 1000:.2f} ms each, {CONCURRENCY} side by side)\n"
        f"memory {first:.2f} MiB after {warm_up} pairs, {last:.2f} at the end: {last - first:+.2f} MiB\n"
        f"with files {before.pss / 1024:.2f} and {after.pss / 1024:.2f} MiB, which depends on other processes",
        flush=True,
    )
    end = time.monotonic() + DEADLINE_S
    while left := _find_leftovers(machine, before, after, files, slices):
        # Temporary use ends, leftovers stay.
        if time.monotonic() > end:
            raise SoakError(left)
        await asyncio.sleep(0.5)
        after = machine.usage()
    for number in range(restarts):
        held_claim = machine.allocate(machine.random.choice(GPUS[:-1]))
        await machine.retry_until_done(driver, "prepare", held_claim)
        work = asyncio.create_task(_run_until_agent_ends(machine, driver))
        await asyncio.sleep(machine.random.uniform(0.05, 0.5))
        await machine.end(signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)
        unfinished = await work
        driver = await machine.start()
        for claim in (held_claim, *unfinished):
            await machine.retry_until_done(driver, "prepare" if claim == held_claim else "unprepare", claim)
        await machine.retry_until_done(driver, "unprepare", held_claim)
    await machine.wait_until_idle()
    end = time.monotonic() + DEADLINE_S
    while new := machine.files() - files:
        if time.monotonic() > end:
            raise SoakError(f"files are left after {restarts} restarts: {sorted(new)}")
        await asyncio.sleep(0.1)
    if "Traceback" in machine.log():
        raise SoakError(f"a traceback in the log:\n{machine.log()}")
    print(
        f"descriptors {before.descriptors} and {after.descriptors}, threads {before.threads} and {after.threads}\n"
        f"{restarts} restarts; disturbances: {dict(machine.disturbed)}\n"
        f"calls that were answered with an error and repeated: {dict(machine.refused.most_common(6))}"
    )
    return last - first


def _find_leftovers(machine: Soak, before: Usage, after: Usage, files: set[str], slices: int) -> str:
    if after.descriptors > before.descriptors + 2:
        return f"descriptors: {before.descriptors} before, {after.descriptors} after"
    if after.threads > max(before.threads, 40):
        return f"threads: {before.threads} before, {after.threads} after"
    if after.processes > before.processes:
        return f"processes: {before.processes} before, {after.processes} after"
    if left := machine.files() - files:
        return f"files are left: {sorted(left)}"
    if machine.slices() != slices:
        return f"slices: {slices} before, {machine.slices()} after"
    return ""


async def _run_until_agent_ends(machine: Soak, driver: Driver) -> list[tuple[str, str, str]]:
    """Run claims until the agent ends; return those of unknown state."""
    unfinished: list[tuple[str, str, str]] = []

    async def work(device: str) -> None:
        while True:
            claim = machine.allocate(device)
            try:
                await driver.call("prepare", [claim])
                released = await driver.call("unprepare", [claim])
            # Cancelled, or not started because the channel was closed.
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.CancelledError):
                unfinished.append(claim)
                return
            if released.claims[claim[2]].error:
                unfinished.append(claim)

    # Without the device of the claim that is held.
    await asyncio.gather(*(work(device) for device in GPUS[:-1]))
    return unfinished


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after this time")
    parser.add_argument("--restarts", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-growth", type=float, default=1.0, metavar="MIB", help="the run fails above this growth")
    args = parser.parse_args()
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")

    async def run() -> float:
        task = asyncio.current_task()
        assert task is not None
        # The agent and its files do not remain.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with tempfile.TemporaryDirectory(prefix="dra-soak-") as folder:
            machine = Soak(Path(folder), args.seed)
            try:
                return await soak(
                    machine,
                    args.pairs,
                    warm_up=WARM_UP,
                    quiet_s=QUIET_S,
                    restarts=args.restarts,
                    until=lambda: time.monotonic() > end,
                )
            except Exception:
                print("\n".join(machine.log().splitlines()[-40:]), file=sys.stderr)
                raise
            finally:
                await machine.close()

    try:
        growth_mib = asyncio.run(run())
    except asyncio.CancelledError:
        print("ended by SIGTERM, without a result", file=sys.stderr)
        return 128 + signal.SIGTERM
    return 0 if growth_mib < args.most_growth else 1


if __name__ == "__main__":
    sys.exit(main())
