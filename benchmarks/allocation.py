"""Measures allocation queries about a whole cluster, on nodes with 8 GPUs and 8 NICs each.

Every size runs in a new process, so that its memory is that of one cluster: slices come in as pages of an API
server, one node at a time. "sweep" is `Cluster.fits` for one claim on all nodes, from Python objects to Python objects;
"first" also compiles and evaluates the selectors. "capacity" is `Cluster.capacity`: all copies that fit and the reason
of each node, 9 searches for a node with 8 GPUs. "cpu" is the CPU time of all threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from results import Measure, Target, this_machine
from results import measure as measured
from results_table import publish

from dra_agent import simulate
from dra_agent.cluster import Cluster
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.slices import desired_slices
from dra_agent.topology import LiveTopology

DRIVER = "dra-agent.internal"
NODE = "node-xxxxx"
PER_FAMILY = 8
ROUNDS = 5
TARGETS = {
    1000: (Target("value", "at most", 0.2), None),
    5000: (Target("value", "at most", 1.5), Target("value", "at most", 300)),
}
"""By number of nodes: CPU seconds of a sweep, and MiB at the peak."""

Json = dict[str, Any]


def device_class(kind: str) -> Json:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    return {"metadata": {"name": kind}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def claim(**counts: int) -> Json:
    requests = [
        {"name": kind, "exactly": {"deviceClassName": kind, "allocationMode": "ExactCount", "count": count}}
        for kind, count in counts.items()
    ]
    return {
        "metadata": {"name": "claim", "namespace": "default", "uid": "claim"},
        "spec": {"devices": {"requests": requests}},
    }


CLASSES = [device_class("gpu"), device_class("nic")]
CLAIMS = {
    "one GPU": claim(gpu=1),
    "8 GPUs and 8 NICs": claim(gpu=PER_FAMILY, nic=PER_FAMILY),
    "9 GPUs, which fit nowhere": claim(gpu=PER_FAMILY + 1),
}


def template() -> str:
    """Return the slices of one node as JSON."""
    with tempfile.TemporaryDirectory() as directory:
        host = simulate.build("dgx-h100", Path(directory) / "host")
        collector = Collector(host, InventorySettings())
        found = collector.collect(LiveTopology(host).snapshot())
        collector.close()
    devices = (*found.family("gpu")[:PER_FAMILY], *found.family("nic")[:PER_FAMILY])
    inventory = Inventory(devices=devices, counter_sets=found.counter_sets)
    return json.dumps(desired_slices(inventory, node=NODE, driver=DRIVER, naming="fixed").slices)


def pages(text: str, nodes: int) -> Iterator[bytes]:
    """Return the slices of each node; names and UUIDs differ between nodes."""
    for number in range(nodes):
        yield text.replace(NODE, f"node-{number:05}").replace("GPU-", f"GPU-{number:05}").encode()


def memory_mib(field: str) -> float:
    """Return VmRSS or VmHWM of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return seconds, CPU seconds of all threads, and the result."""
    began, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - began, time.process_time() - cpu, result


def measure(nodes: int) -> Json:
    text = template()
    before = memory_mib("VmRSS")
    build_s, _, cluster = timed(lambda: Cluster(pages(text, nodes), CLASSES))
    result: Json = {"nodes": nodes, "devices": nodes * 2 * PER_FAMILY, "build_s": round(build_s, 3), "sweeps": {}}
    for name, one in CLAIMS.items():
        sweep = partial(cluster.fits, [one], deadline=600.0)
        first_s, first_cpu_s, found = timed(sweep)
        again = [timed(sweep) for _ in range(ROUNDS)]
        result["sweeps"][name] = {
            "fits": len(found.fits),
            "does_not_fit": len(found.reasons),
            "first_s": [round(first_s, 4)],
            "first_cpu_s": [round(first_cpu_s, 4)],
            "sweep_s": [round(one[0], 5) for one in again],
            "sweep_cpu_s": [round(one[1], 5) for one in again],
        }
    for name, one in (("one GPU", CLAIMS["one GPU"]), ("a GPU and a NIC", claim(gpu=1, nic=1))):
        found = [timed(partial(cluster.capacity, [one], deadline=600.0)) for _ in range(ROUNDS)]
        result.setdefault("capacity", {})[name] = {
            "total": found[0][2].total,
            "_s": [round(entry[0], 5) for entry in found],
            "_cpu_s": [round(entry[1], 5) for entry in found],
        }
    result["memory_mib"] = round(memory_mib("VmRSS") - before, 1)
    result["peak_memory_mib"] = round(memory_mib("VmHWM") - before, 1)
    result["expressions_compiled"] = cluster.counts.expressions_compiled
    result["slices_decoded"] = cluster.counts.slices_decoded
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help="default: 1000 and 5000")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    args = parser.parse_args()
    sizes = args.nodes or (1000, 5000)
    if args.here:
        for nodes in sizes:
            print(json.dumps(measure(nodes)), flush=True)
        return
    machine, measures = this_machine(), list[Measure]()
    for nodes in sizes:
        command = [sys.executable, __file__, "--here", "--nodes", str(nodes)]
        measures += measures_of(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    publish("allocation", measures, machine)


def measures_of(found: Json) -> list[Measure]:
    """Return what a process measured."""
    host = f"{found['nodes']} nodes"
    measures = [measured(f"{host}: build", "s", [found["build_s"]])]
    sweep_target, memory_target = TARGETS.get(found["nodes"], (None, None))
    for name, one in found["sweeps"].items():
        for kind in ("first", "sweep"):
            for suffix, label, target in (("_s", kind, None), ("_cpu_s", f"{kind}, CPU", sweep_target)):
                measures.append(measured(f"{host}: {name}: {label}", "s", one[kind + suffix], target=target))
        counts = f"fits {one['fits']}, does not fit {one['does_not_fit']}"
        print(f"{host}: {name}: {counts}")
    for name, one in found["capacity"].items():
        measures.append(measured(f"{host}: {name}: capacity", "s", one["_s"]))
        measures.append(measured(f"{host}: {name}: capacity, CPU", "s", one["_cpu_s"]))
        print(f"{host}: {name}: capacity {one['total']}")
    for field, unit, target in (
        ("memory_mib", "MiB", None),
        ("peak_memory_mib", "MiB", memory_target),
        ("expressions_compiled", "count", None),
        ("slices_decoded", "count", None),
    ):
        name = f"{host}: {field.removesuffix('_mib').replace('_', ' ')}"
        measures.append(measured(name, unit, [found[field]], target=target))
    return measures


if __name__ == "__main__":
    main()
