"""Measures what kube-scheduler and the API server need for many nodes whose GPUs are published in MIG partitions.

Each part has its own etcd, kube-apiserver and kube-scheduler, and nodes with the slices of a simulated DGX H100: whole
GPUs, all MIG profiles, and two profiles, as an operator leaves the others out (`inventory.exclude`). Nodes, slices and
pods exist before the scheduler starts. It binds a first pod, which includes its reads of all slices and ends when its
caches are filled, and then as many as there are to be measured, each with a claim for one device. No kubelet runs.

Requires Go and openssl, and uses etcd, kube-apiserver and kube-scheduler of the test cluster (tests/cluster).
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path

from capacity_clusters import PLACEHOLDER, Kind, slices_of_kind
from drivers import binaries
from drivers_claims import GROUP, NAMESPACE, make_namespace, make_node
from fleet_counts import usage
from fleet_plane import API_SERVER, FleetPlane
from results import Measure, measure, this_machine
from results_table import publish
from run_directory import run_directory
from slices_scheduler import allocate, make_class, make_pods, make_ready, scheduling, stop

PROFILE = "dgx-h100"
DRIVER = "dra-agent.internal"
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
MIB = 1 << 20
LISTS = 3
MIG = f"""\
[[inventory.partition]]
when = '{ATTRIBUTES}.vendor == "nvidia"'
mode = "mig"
"""
TWO_PROFILES = f"""\
[inventory]
exclude = ['has({ATTRIBUTES}.profile) && !({ATTRIBUTES}.profile in ["1g.10gb", "3g.40gb"])']
"""
GPU = f'device.driver == "{DRIVER}" && {ATTRIBUTES}.type == "gpu"'
ONE_G = f'device.driver == "{DRIVER}" && has({ATTRIBUTES}.profile) && {ATTRIBUTES}.profile == "1g.10gb"'


@dataclass(frozen=True)
class Form:
    """One way to publish the devices of the nodes."""

    name: str
    config: str
    device_class: str
    """CEL of the devices that the claims request."""


FORMS = (
    Form("whole GPUs", "", GPU),
    Form("all MIG profiles", MIG, ONE_G),
    Form("two MIG profiles", TWO_PROFILES + MIG, ONE_G),
)


@dataclass(frozen=True)
class Volume:
    """What was measured of one form; CPU and elapsed times in seconds, sizes in bytes."""

    devices: int
    """Of one node."""
    slice_bytes: int
    """JSON of the slices of one node."""
    list_s: list[float]
    first_s: float
    first_cpu_s: float
    pods_s: float
    pods_cpu_s: float
    scheduler_bytes: int
    api_server_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, help="directory of the control plane (default: built once)")
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the file system to use")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=100, help="pods that are measured")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where the results are written (target/bench)")
    args = parser.parse_args()
    programs = args.binaries or binaries()
    machine = this_machine()
    with run_directory(args.dir) as directory:
        folder = Path(directory)
        volumes = []
        for number, form in enumerate(FORMS):
            volumes.append(measure_form(form, args.nodes, args.pods, programs, folder / str(number)))
            print(f"{form.name}: {volumes[-1].devices} devices on each of {args.nodes} nodes", flush=True)
    publish(f"mig-volume-{args.nodes}", measures_of(volumes, args.nodes, args.pods), machine, directory=args.results)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def measure_form(form: Form, nodes: int, pods: int, programs: Path, folder: Path) -> Volume:
    """Run a control plane with the nodes of one form, and schedule the pods."""
    folder.mkdir()
    template = json.dumps(slices_of_kind(Kind(PROFILE, form.config), folder / "agent.toml"))
    plane = FleetPlane(programs, folder / "plane")
    try:
        make_namespace(plane)
        plane.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        make_class(plane, "measured", form.device_class)
        for number in range(nodes):
            name = f"node-{number}"
            make_node(plane, name)
            make_ready(plane, name)
            for one in json.loads(template.replace(PLACEHOLDER, name)):
                plane.ask("POST", f"{GROUP}/resourceslices", one)
        lists = [plane.slices("0") for _ in range(LISTS)]
        make_pods(plane, "first", 1, "measured")
        with scheduling(programs, plane, folder / "scheduler") as process:
            first_s = allocate(plane, process, 1)
            stop(process)
            started = usage(process.pid)
            make_pods(plane, "pod", pods, "measured")
            pods_s = allocate(plane, process, 1 + pods)
            ended = usage(process.pid)
        specs = [one["spec"] for one in json.loads(template)]
        return Volume(
            devices=sum(len(spec.get("devices") or ()) for spec in specs),
            slice_bytes=sum(len(json.dumps(spec, separators=(",", ":"))) for spec in specs),
            list_s=[one[0] for one in lists],
            first_s=first_s,
            first_cpu_s=started.cpu_s,
            pods_s=pods_s,
            pods_cpu_s=ended.cpu_s - started.cpu_s,
            scheduler_bytes=ended.resident,
            api_server_bytes=usage(plane.pids[API_SERVER]).resident,
        )
    finally:
        plane.close()


def measures_of(volumes: list[Volume], nodes: int, pods: int) -> list[Measure]:
    """Compare each form with the first one."""
    measures = []
    whole = volumes[0]
    for form, volume in zip(FORMS, volumes, strict=True):
        values: list[tuple[str, str, list[float], list[float]]] = [
            ("devices of a node", "count", [volume.devices], [whole.devices]),
            ("JSON of the slices of a node", "KiB", [volume.slice_bytes / 1024], [whole.slice_bytes / 1024]),
            ("list of all slices", "ms", _thousandfold(volume.list_s), _thousandfold(whole.list_s)),
            ("scheduler, start to the first pod", "s", [volume.first_s], [whole.first_s]),
            ("scheduler, CPU until then", "s", [volume.first_cpu_s], [whole.first_cpu_s]),
            (f"scheduler, {pods} pods, each", "ms", [1000 * volume.pods_s / pods], [1000 * whole.pods_s / pods]),
            ("scheduler, CPU for each", "ms", [1000 * volume.pods_cpu_s / pods], [1000 * whole.pods_cpu_s / pods]),
            ("scheduler, resident", "MiB", [volume.scheduler_bytes / MIB], [whole.scheduler_bytes / MIB]),
            ("API server, resident", "MiB", [volume.api_server_bytes / MIB], [whole.api_server_bytes / MIB]),
        ]
        for name, unit, found, reference in values:
            title = f"{form.name} on {nodes} nodes: {name}"
            if form is FORMS[0]:
                measures.append(measure(title, unit, found))
            else:
                measures.append(measure(title, unit, found, compared_with=FORMS[0].name, reference=reference))
    return measures


def _thousandfold(values: list[float]) -> list[float]:
    return [1000 * value for value in values]


if __name__ == "__main__":
    main()
