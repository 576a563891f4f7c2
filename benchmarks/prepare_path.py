"""Measures where a prepare spends CPU time, from the kubelet's write to its read, by adding one part after the other.

The agent's parts run in this process: gRPC server, API client, threads of calls, preparer with the durable ledger. The
kubelet and an API server over TLS run in another process, so that their CPU time is not counted. Each stage adds one
part to the previous stage; the difference of two stages is the cost of the part. CPU time and context switches are
valid on a busy machine; the latencies are not. Requires openssl.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from results import Measure, save, this_machine
from results import measure as measured
from run_directory import run_directory

from dra_agent.api_object import Object
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.kube_client import ApiClient, connect
from dra_agent.kube_client.kinds import RESOURCE_CLAIMS
from dra_agent.kubelet_plugin.interfaces import ClaimSource
from dra_agent.kubelet_plugin.plugin import KubeletPlugin
from dra_agent.kubelet_plugin.proto import dra_v1_pb2
from dra_agent.kubelet_plugin.sockets import SocketPaths
from dra_agent.prepare import ClaimPreparer
from dra_agent.prepare.ledger import JournalLedger
from prepare import DRIVER, POOL, TMPFS, make_devices, make_preparer

if TYPE_CHECKING:
    import grpc

CALL_TIMEOUT_S = 45.0
GROUP = 50
"""Calls of which the CPU time is read once: each has its own device."""
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
HEADERS = (
    "Audit-Id: 2f0e5e1c-7d61-4d0e-8b8e-2a5f1d6f2c11",
    "Cache-Control: no-cache, private",
    "Content-Type: application/json",
    "X-Kubernetes-Pf-Flowschema-Uid: 6d1b9d7c-3b7e-4a0e-9a43-6f2f0f0c3a55",
    "X-Kubernetes-Pf-Prioritylevel-Uid: 0b1f6c0e-8f0c-4f2e-a7cf-2b3a5d3a0f0c",
    "Date: Tue, 24 Nov 2026 12:00:00 GMT",
)
"""As kube-apiserver sends them."""


@dataclass(frozen=True)
class Usage:
    """CPU seconds of this process by kind of thread, and its voluntary context switches."""

    cpu_s: dict[str, float]
    switches: int

    @classmethod
    def now(cls) -> Usage:
        kinds = {"MainThread": "loop"}
        cpu_s = {"all": time.process_time(), "loop": 0.0, "calls": 0.0}
        for thread in threading.enumerate():
            kind = kinds.get(thread.name, thread.name.partition("_")[0])
            if kind in cpu_s:
                # The first number is the time on a CPU in ns (Documentation/scheduler/sched-stats.rst).
                spent = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
                cpu_s[kind] += int(spent) / 1e9
        cpu_s["grpc"] = cpu_s["all"] - cpu_s["loop"] - cpu_s["calls"]
        return cls(cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)


class StoredClaims:
    """Claims in memory, so that no API server is read."""

    def __init__(self, claims: dict[str, Object]) -> None:
        self._claims = claims

    async def claim(self, namespace: str, name: str, timeout: float) -> Object:
        return self._claims[name]

    def claim_on_thread(self, namespace: str, name: str, timeout: float) -> Object | None:
        return self._claims[name]


class ReadClaims:
    """Claims that are read from the API server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def claim(self, namespace: str, name: str, timeout: float) -> Object:
        return await self._api.get(RESOURCE_CLAIMS, name, namespace, timeout=timeout)

    def claim_on_thread(self, namespace: str, name: str, timeout: float) -> Object | None:
        return self._api.get_on_thread(RESOURCE_CLAIMS, name, namespace, timeout=timeout)


class NoPreparer:
    """Returns a device for each claim and does nothing."""

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> Sequence[ClaimDevice]:
        result = claim["status"]["allocation"]["devices"]["results"][0]
        return [ClaimDevice(result["pool"], result["device"], (result["request"],), cdi_device_ids=("a/b=c",))]

    def unprepare(self, uid: str, deadline: Deadline) -> object:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=20, help=f"groups of {GROUP} calls in each stage")
    parser.add_argument("--held", type=int, default=64, help="claims that stay prepared during the run")
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the file system to measure")
    args = parser.parse_args()
    with (
        run_directory(args.dir) as state,
        tempfile.TemporaryDirectory(dir=TMPFS) as run,
    ):
        machine = this_machine()
        path, _ = save("prepare_path", asyncio.run(measure(args, Path(state), Path(run))), machine)
        print(f"written to {path}")


async def measure(args: argparse.Namespace, state: Path, run: Path) -> list[Measure]:
    names = [f"claim-{number}" for number in range(GROUP)]
    claims = {name: claim(name, f"gpu-{number}") for number, name in enumerate(names)}
    make_certificate(run)
    here, there = get_context("spawn").Pipe()
    child = get_context("spawn").Process(target=outside, args=(there, run, claims), daemon=True)
    child.start()
    port = await asyncio.to_thread(here.recv)
    api = connect(kubeconfig(run, port))
    stored, read, nothing = StoredClaims(claims), ReadClaims(api), NoPreparer()
    found: dict[str, list[Result]] = {}
    devices = make_devices(state, GROUP + args.held)
    (run / "owners").mkdir()
    with JournalLedger(state / "state", "boot") as ledger:
        preparer = make_preparer(state, run / "owners", ledger, devices)
        for number in range(args.held):
            preparer.prepare(claim(f"held-{number}", f"gpu-{GROUP + number}"))
        parts: tuple[tuple[ClaimSource, ClaimPreparer, tuple[tuple[str, str, list[str]], ...]], ...] = (
            (stored, nothing, (("an empty call", "prepare", []),)),
            (stored, nothing, (("a claim", "prepare", names),)),
            (read, nothing, (("and a read of the claim", "prepare", names),)),
            (read, preparer, (("prepare", "prepare", names), ("prepare again", "prepare", names))),
            (read, preparer, (("unprepare", "unprepare", names),)),
        )
        for number in range(args.groups + 1):
            for source, stage_preparer, stages in parts:
                async with serving(run, source, stage_preparer):
                    for title, operation, called in stages:
                        result = await calls(here, run, operation, called)
                        if number:  # the first group fills caches
                            found.setdefault(title, []).append(result)
    here.send(None)
    await api.close()
    child.join(10)
    print(f"{args.groups} groups of {GROUP} calls, load {os.getloadavg()[0]:.1f}; medians of the groups, for each call")
    print(f"{'':26}{'CPU us':>8}{'loop':>7}{'calls':>8}{'grpc':>7}{'switches':>10}{'p50 ms':>8}")
    return [one for title, results in found.items() for one in report(title, results)]


@dataclass(frozen=True)
class Result:
    """A group of calls."""

    before: Usage
    after: Usage
    times_s: list[float]

    def cpu_us(self, kind: str) -> float:
        return (self.after.cpu_s[kind] - self.before.cpu_s[kind]) / len(self.times_s) * 1e6

    @property
    def switches(self) -> float:
        return (self.after.switches - self.before.switches) / len(self.times_s)


async def calls(here: Connection, run: Path, operation: str, names: Sequence[str]) -> Result:
    """Have the other process make a group of calls, with one claim each, or with none."""
    await asyncio.to_thread(exchange, here, (str(run / "dra.sock"), operation, [], 1))  # connects
    before = Usage.now()
    times_s = await asyncio.to_thread(exchange, here, (str(run / "dra.sock"), operation, names, GROUP))
    return Result(before, Usage.now(), times_s)


def exchange(here: Connection, command: tuple[object, ...]) -> Any:
    here.send(command)
    return here.recv()


def report(title: str, results: Sequence[Result]) -> list[Measure]:
    """Print a stage, and return its measures."""
    measures = [
        measured(f"{title}, CPU time, {kind}", "us", [one.cpu_us(kind) for one in results])
        for kind in ("all", "loop", "calls", "grpc")
    ]
    measures.append(measured(f"{title}, voluntary context switches", "switches", [one.switches for one in results]))
    times_ms = [value * 1e3 for result in results for value in result.times_s]
    measures.append(measured(f"{title}, latency", "ms", times_ms))
    widths = ("8.0f", "7.0f", "8.0f", "7.0f", "10.1f", "8.2f")
    print(f"{title:26}" + "".join(format(one.value, width) for one, width in zip(measures, widths, strict=True)))
    return measures


@asynccontextmanager
async def serving(run: Path, source: ClaimSource, preparer: ClaimPreparer) -> AsyncIterator[None]:
    plugin = KubeletPlugin(SocketPaths(run / "dra.sock", run / "reg.sock"), DRIVER, source)
    await plugin.open()
    plugin.serve(preparer)
    try:
        yield
    finally:
        await plugin.close()


def claim(name: str, device: str) -> dict[str, Any]:
    """Return a claim of about 2 KB, as the API server returns it."""
    managed: list[dict[str, Any]] = [
        {"manager": manager, "operation": "Update", "time": "2026-11-24T12:00:00Z", "fieldsV1": {"f:status": {}}}
        for manager in ("kube-controller-manager", "kube-scheduler", "kubelet", "dra-agent") * 2
    ]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    result = {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": name, "managedFields": managed},
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-{name}"}],
        },
    }


def make_certificate(run: Path) -> None:
    files = ("-keyout", str(run / "key"), "-out", str(run / "certificate"))
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    name = ("-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1")
    subprocess.run(["openssl", "req", "-x509", *kind, *name, *files], check=True, capture_output=True)


def kubeconfig(run: Path, port: int) -> Path:
    path = run / "kubeconfig"
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(run / "certificate")}
    config = {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "bench", "user": {"token": "t" * 900}}],
    }
    path.write_bytes(msgspec.json.encode(config))
    return path


def outside(commands: Connection, run: Path, claims: dict[str, Object]) -> None:
    """Run the kubelet and the API server in another process."""
    import grpc

    server = ApiServer(claims)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(run / "certificate", run / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    commands.send(server.server_address[1])
    channels: dict[str, grpc.Channel] = {}
    while (command := commands.recv()) is not None:
        path, operation, names, count = command
        if path not in channels:
            channels[path] = grpc.insecure_channel(f"unix:{path}")
            grpc.channel_ready_future(channels[path]).result(CALL_TIMEOUT_S)
        commands.send([call(channels[path], operation, names, number) for number in range(count)])


def call(channel: grpc.Channel, operation: str, names: Sequence[str], number: int) -> float:
    method = "NodePrepareResources" if operation == "prepare" else "NodeUnprepareResources"
    request = getattr(dra_v1_pb2, f"{method}Request")()
    if names:
        name = names[number % len(names)]
        request.claims.add(namespace="default", name=name, uid=name)
    invoke: Callable[..., Any] = channel.unary_unary(
        SERVICE + method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=getattr(dra_v1_pb2, f"{method}Response").FromString,
    )
    began = time.perf_counter()
    response = invoke(request, timeout=CALL_TIMEOUT_S)
    spent_s = time.perf_counter() - began
    failed = [answer.error for answer in response.claims.values() if answer.error]
    if failed or len(response.claims) != len(request.claims):
        sys.exit(f"{operation} failed: {failed}")
    return spent_s


class ApiServer(ThreadingHTTPServer):
    """Returns claims by name."""

    daemon_threads = True

    def __init__(self, claims: dict[str, Object]) -> None:
        bodies = {name: msgspec.json.encode(value) for name, value in claims.items()}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                body = bodies[self.path.rpartition("/")[2]]
                lines = ("HTTP/1.1 200 OK", *HEADERS, f"Content-Length: {len(body)}", "", "")
                self.wfile.write("\r\n".join(lines).encode() + body)

        super().__init__(("127.0.0.1", 0), Handler)


if __name__ == "__main__":
    main()
