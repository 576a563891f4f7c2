"""Measures standalone mode with thousands of claims that wait: apply, `claim list`, a freed device, stop and restart.

The agent is a process on a simulated DGX H100 whose eight GPUs are held. No claim but the last ones fits when one is
freed: the first claim that fits is at the end of the queue, the worst case. The claims have

  equal specs         each needs two GPUs
  different specs     the same, with a selector that is different in each
  selective specs     each needs the one GPU that is never freed, so only its selector refuses the others

  list during apply   all claims as `claim list` requests them, every 0.1 s, from the request that applies until every
                      claim is tried
  a freed device      from the request that deletes its claim until the claim at the end of the queue is prepared,
                      compared with the same in a queue without other claims
  stop                SIGTERM while all claims are tried again after a release
  restart             until the socket accepts connections

A missed target is never a failure: the machine may be busy.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from results import Measure, Target, measure, this_machine
from results_table import publish

from agent import PROFILE, memory, start, stop
from dra_agent.standalone.protocol import Apply, Client, Delete, Get
from dra_simulate import build

GPUS = 8
MAX_ROUNDS = GPUS - 1
KINDS = ("equal", "different", "selective")
QUICK_CLAIMS, QUICK_ROUNDS = 10, 1
LIST_INTERVAL_S = 0.1
POLL_INTERVAL_S = 0.02
TIMEOUT_S = 300.0
DRIVER = "dra-agent.internal"
UNTRIED = "is not tried yet"
"""How the message of a claim begins that is still to be tried."""
APPLY, LIST, STOP, RESTART = (Target("value", "at most", seconds) for seconds in (10.0, 0.5, 2.0, 2.0))
FREED = Target("value", "at most", 50.0)

Json = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=20_000, help="claims that wait (default: 20000)")
    parser.add_argument(
        "--rounds", type=int, default=MAX_ROUNDS, help="devices that are freed (default: 7, all but one)"
    )
    parser.add_argument("--quick", action="store_true", help="few claims and rounds: for the test of this benchmark")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where the results are written (target/bench)")
    args = parser.parse_args()
    claims, rounds = (QUICK_CLAIMS, QUICK_ROUNDS) if args.quick else (args.claims, min(args.rounds, MAX_ROUNDS))
    machine, measures = this_machine(), list[Measure]()
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="dra-bench-") as directory:
            measures += measure_queue(kind, Path(directory), claims, rounds)
    publish("standalone", measures, machine, directory=args.results)


def measure_queue(kind: str, state: Path, claims: int, rounds: int) -> list[Measure]:
    """Measure one queue from its first claim to a restart."""
    build(PROFILE, state / "simulated" / PROFILE)
    title = f"{claims} {kind} specs"
    agent, _ = start(state)
    try:
        with Client(state / "agent.sock") as client:
            client.call(Apply([device_class(), *(claim(f"holder-{number}") for number in range(GPUS))]))
            alone = freed_devices(client, rounds, holders="holder", fitting="alone")
            held = client.call(Get("default", f"holder-{GPUS - 1}"))["devices"][0]["device"]
            waiting = [waiting_claim(kind, f"waits-{number:05}", held) for number in range(claims)]
            measures = measure_apply(title, client, waiting)
            measures += memory(title, agent)
            crowded = freed_devices(client, rounds, holders="alone", fitting="last")
            measures.append(
                measure(
                    f"{title}: a freed device",
                    "ms",
                    crowded,
                    compared_with="no other claim waits",
                    reference=alone,
                    target=FREED,
                )
            )
            client.call(Delete("ResourceClaim", "last-0"))
        measures.append(measure(f"{title}: stop", "s", [stop_time(agent)], target=STOP))
        agent, seconds = start(state)
        measures.append(measure(f"{title}: restart", "s", [seconds], target=RESTART))
        with Client(state / "agent.sock") as client:
            assert client.call(Get("default", f"waits-{claims - 1:05}"))["phase"] == "Pending"
    finally:
        if agent.poll() is None:
            stop(agent)
    return measures


def measure_apply(title: str, client: Client, waiting: list[Json]) -> list[Measure]:
    """Apply the claims in one request, and list all of them until the last one is tried."""
    with Lister(client.path) as lister:
        began = time.perf_counter()
        client.call(Apply(waiting), timeout_s=TIMEOUT_S)
        responded = time.perf_counter() - began
        last = waiting[-1]["metadata"]["name"]
        while UNTRIED in client.call(Get("default", last))["message"]:
            assert time.perf_counter() - began < TIMEOUT_S, "the claims are not tried"
            time.sleep(POLL_INTERVAL_S)
        tried = time.perf_counter() - began
    return [
        measure(f"{title}: apply, response", "s", [responded]),
        measure(f"{title}: applied and tried", "s", [tried], target=APPLY),
        measure(f"{title}: list during apply, p99", "s", lister.seconds, at=0.99, target=LIST),
    ]


class Lister:
    """Lists all claims repeatedly, on a thread; `seconds` has the time of each request."""

    def __init__(self, socket: Path) -> None:
        self.seconds: list[float] = []
        self._socket = socket
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Lister:
        self._listing = self._pool.submit(self._list)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listing.result()
        self._pool.shutdown()

    def _list(self) -> None:
        with Client(self._socket) as client:
            while not self.seconds or not self._ended.wait(LIST_INTERVAL_S):
                began = time.perf_counter()
                for _ in client.claims(whole=False, timeout_s=TIMEOUT_S):
                    pass
                self.seconds.append(time.perf_counter() - began)


def freed_devices(client: Client, rounds: int, *, holders: str, fitting: str) -> list[float]:
    """Delete holders one by one; return the milliseconds until the claim at the end of the queue has each device."""
    client.call(Apply([claim(f"{fitting}-{number}") for number in range(rounds)]), timeout_s=TIMEOUT_S)
    times = []
    with ThreadPoolExecutor(1) as pool, Client(client.path) as waiting:
        for number in range(rounds):
            prepared = pool.submit(prepared_at, waiting, f"{fitting}-{number}")
            began = time.perf_counter()
            client.call(Delete("ResourceClaim", f"{holders}-{number}"))
            times.append((prepared.result() - began) * 1000)
    return times


def prepared_at(client: Client, name: str) -> float:
    """Wait until a claim is prepared, and return that time."""
    view = client.call(Get("default", name, TIMEOUT_S))
    assert view["phase"] == "Prepared", view["message"]
    return time.perf_counter()


def stop_time(agent: subprocess.Popen[bytes]) -> float:
    began = time.perf_counter()
    stop(agent)
    return time.perf_counter() - began


def device_class() -> Json:
    expression = f'device.attributes["{DRIVER}"].type == "gpu"'
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
    return {**meta, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def waiting_claim(kind: str, name: str, held: str) -> Json:
    """Return a claim that waits until its end; `held` is the GPU that is never freed, as gpu-0000-1b-00-0."""
    if kind == "equal":
        return claim(name, count=2)
    different = f'device.attributes["{DRIVER}"].type != "{name}"'
    if kind == "different":
        return claim(name, different, count=2)
    domain, bus, slot, function = held.split("-")[1:5]
    address = f'device.attributes["resource.kubernetes.io"].pciBusID == "{domain}:{bus}:{slot}.{function}"'
    return claim(name, f"{address} && {different}")


def claim(name: str, selector: str = "", *, count: int = 1) -> Json:
    exactly: Json = {"deviceClassName": "gpu", "count": count}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**meta, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}


if __name__ == "__main__":
    main()
