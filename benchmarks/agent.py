"""One agent on a simulated DGX H100: how long it takes to serve, what it weighs, and whether it grows.

Start is measured against a bare `python -c pass` in the same run, and the durable prepare against a bare write and
fdatasync, as a slow machine slows both. Memory is resident memory with every device claimed, in MiB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dra_agent.standalone.client import Client
from dra_agent.standalone.wire import SOCKET, Apply, Delete

PROFILE = "dgx-h100"
API = "resource.k8s.io/v1"
CLASS = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
BUDGET = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="claims applied and deleted to look for growth")
    parser.add_argument("--dir", type=Path, default=Path(), help="on the file system to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir.absolute(), prefix="b") as directory:
        folder = Path(directory)
        first = start(folder)  # builds the simulated host
        stop(first)
        starts, bare = [], []
        for _ in range(5):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            bare.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            agent = start(folder)
            starts.append(time.perf_counter() - begin)
            if len(starts) < 5:
                stop(agent)
        print(f"process start to socket: {min(starts) * 1e3:.0f} ms, {min(starts) / min(bare):.1f} times a bare Python")
        idle = resident(agent)
        with Client(folder / "s" / SOCKET) as client:
            client.ask(Apply([CLASS]))
            held = 0
            while client.ask(Apply([claim(f"held-{held}")]))[0]["claim"]["phase"] != "Pending":
                held += 1
            client.ask(Delete("ResourceClaim", f"held-{held}", "bench", 10.0))
            client.ask(Delete("ResourceClaim", "held-0", "bench", 10.0))
            full = resident(agent)
            print(f"resident: {idle:.1f} MiB idle, {full:.1f} MiB with {held} claims (budget {BUDGET:.0f})")
            pairs(client, args.pairs)  # caches and pools fill first
            before = resident(agent)
            times = pairs(client, args.pairs)
            after = resident(agent)
        stop(agent)
        synced = bare_syncs(folder, args.pairs)
        print(f"growth over {args.pairs} apply/delete pairs: {after - before:+.2f} MiB")
        print(f"{'':34}{'p50 ms':>10}{'p99 ms':>10}")
        print(f"{'bare write + fdatasync':34}{quantile(synced, 0.5):10.2f}{quantile(synced, 0.99):10.2f}")
        print(f"{'apply → allocated, prepared, answer':34}{quantile(times, 0.5):10.2f}{quantile(times, 0.99):10.2f}")
    return 0 if full <= BUDGET else 1


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start an agent and wait until it listens."""
    socket = folder / "s" / SOCKET
    command = [sys.executable, "-m", "dra_agent", "run", "--standalone", "--simulate", PROFILE, "--node-name", "n"]
    command += ["--state-dir", str(folder / "s"), "--cdi-dir", str(folder / "cdi"), "--log-level", "error"]
    agent = subprocess.Popen(command)
    while not socket.exists():
        if agent.poll() is not None:
            raise SystemExit("the agent did not start")
        time.sleep(0.002)
    return agent


def stop(agent: subprocess.Popen[bytes]) -> None:
    agent.terminate()
    agent.wait(30)


def claim(name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {"devices": {"requests": [{"name": "any", "exactly": exactly}]}},
    }


def pairs(client: Client, count: int) -> list[float]:
    """Apply and delete a claim again and again; milliseconds of each apply."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        client.ask(Apply([claim("again")]))
        times.append((time.perf_counter() - begin) * 1e3)
        client.ask(Delete("ResourceClaim", "again", "bench", 10.0))
    return times


def bare_syncs(folder: Path, count: int) -> list[float]:
    handle = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        os.write(handle, b"x" * 1000)
        os.fdatasync(handle)
        times.append((time.perf_counter() - begin) * 1e3)
    os.close(handle)
    return times


def resident(agent: subprocess.Popen[bytes]) -> float:
    status = Path(f"/proc/{agent.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


if __name__ == "__main__":
    sys.exit(main())
