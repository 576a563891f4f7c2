"""Counts the claims for partitions of eight H100 that fit before the first refusal: the agent's order against NVML's.

Claims arrive in random sequences with a mix of profiles, equal for both orders, on the slices of a simulated DGX H100.
Most are allocated only by the counters of the slices (packing_replay.py), the first of each mix also by the agent's
allocator: both must select the same devices. "Leaving" is the share of events in which a random claim ends instead
of a new one arriving. Orders are compared for each sequence; "95 %" is the half width of the confidence interval of
the mean difference. The mixes are synthetic.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from packing_replay import Partition, Replay
from results import Measure, measure, this_machine
from results_table import publish

from dra_agent import simulate
from dra_agent.cluster import Cluster
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.slices import desired_slices
from dra_agent.topology import LiveTopology

DRIVER = "dra-agent.internal"
WHOLE = "whole"
TABLE = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb")
"""The order of NVML's profile numbers."""
MIXES: Mapping[str, Mapping[str, int]] = {
    "every profile alike": dict.fromkeys((*TABLE, WHOLE), 1),
    "small: 1g, 2g, 3g as 6:2:1": {"1g.10gb": 6, "2g.20gb": 2, "3g.40gb": 1},
    "middle: 1g, 1g double, 2g, 3g, 4g as 3:1:3:2:1": {
        "1g.10gb": 3,
        "1g.20gb": 1,
        "2g.20gb": 3,
        "3g.40gb": 2,
        "4g.40gb": 1,
    },
    "large: 1g, 2g, 3g, 4g, whole as 2:1:2:1:1": {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 2, "4g.40gb": 1, WHOLE: 1},
}
ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def class_of(wanted: str) -> str:
    """Return the name of the DeviceClass of a profile, or of whole GPUs."""
    return wanted.replace(".", "-").replace("+", "-")


def device_class(wanted: str) -> dict[str, Any]:
    """Return the DeviceClass."""
    chosen = f'{ATTRIBUTES}.type == "gpu"'
    if wanted != WHOLE:
        chosen = f'has({ATTRIBUTES}.profile) && {ATTRIBUTES}.profile == "{wanted}"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": class_of(wanted)},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}" && {chosen}'}}]},
    }


CLASSES = [device_class(wanted) for wanted in (*TABLE, WHOLE)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--checked", type=int, default=2, help="sequences of each mix that the allocator checks")
    parser.add_argument("--mix", choices=list(MIXES), action="append")
    args = parser.parse_args()
    table, agent = published(by_table), published(lambda device: device.order)
    machine, measures = this_machine(), list[Measure]()
    for mix in args.mix or MIXES:
        for leaving in (0.0, 0.4):
            for slices in (table, agent):
                check(slices, MIXES[mix], leaving, args.checked)
            pairs = [
                tuple(len(sequence(Counted(slices), MIXES[mix], leaving, seed)) for slices in (table, agent))
                for seed in range(args.sequences)
            ]
            measures += compared(f"{mix}, {leaving:.0%} leave", pairs)
    publish("packing", measures, machine)


def compared(mix: str, pairs: Sequence[tuple[int, ...]]) -> list[Measure]:
    """Compare the claims placed before the first refusal in NVML's order and the agent's, by sequence."""
    table, agent = ([float(pair[which]) for pair in pairs] for which in (0, 1))
    mean = [statistics.mean(placed) for placed in (table, agent)]
    gains = [after - before for before, after in pairs]
    half = 1.96 * statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    better, worse = (sum(sign * gain > 0 for gain in gains) / len(gains) for sign in (1, -1))
    gain = measure(
        f"{mix}: claims placed, mean",
        "claims",
        mean[1:],
        better="higher",
        compared_with="NVML's order",
        reference=mean[:1],
    )
    print(
        f"{mix}: {statistics.mean(gains) / mean[0]:+.1%}, 95 % interval {half / mean[0]:.1%} to each side", flush=True
    )
    return [
        gain,
        measure(f"{mix}: sequences with more", "%", [better * 100], better="higher"),
        measure(f"{mix}: sequences with fewer", "%", [worse * 100]),
    ]


def check(slices: list[dict[str, Any]], mix: Mapping[str, int], leaving: float, sequences: int) -> None:
    """Check the first sequences with the allocator; end the run if its result differs."""
    for seed in range(sequences):
        counted = sequence(Counted(slices), mix, leaving, seed)
        allocated = sequence(Allocated(slices), mix, leaving, seed)
        if counted != allocated:
            raise SystemExit(f"sequence {seed}: counters give {counted}, the allocator {allocated}")


def published(order: Callable[[Device], int]) -> list[dict[str, Any]]:
    """Return the slices of the GPUs, with the devices of each GPU in that order."""
    rule = PartitionRule(when=f'device.attributes["{DRIVER}"].type == "gpu"', mode="mig")
    with tempfile.TemporaryDirectory() as directory:
        host = simulate.build("dgx-h100", Path(directory) / "host")
        collector = Collector(host, InventorySettings(partition=(rule,)))
        found = collector.collect(LiveTopology(host).snapshot())
        collector.close()
    devices = tuple(msgspec.structs.replace(device, order=order(device)) for device in found.family("gpu"))
    only = Inventory(devices=devices, counter_sets=found.counter_sets)
    return desired_slices(only, node="node-1", driver=DRIVER, naming="fixed").slices


def by_table(device: Device) -> int:
    """Return the sort key of NVML's order: the whole GPU, then the profiles, each with its placements."""
    profile = device.attributes.get("profile")
    if profile is None:
        return 0
    start = int(device.identity["mig"].split(":")[1])
    return 1 + TABLE.index(str(profile.value)) * 8 + start


class Counted:
    """Allocates by counters."""

    def __init__(self, slices: list[dict[str, Any]]) -> None:
        self._replay = Replay(slices, WHOLE)
        self._held: list[Partition] = []

    def place(self, wanted: str) -> str | None:
        """Return the device that a claim gets, or None."""
        placed = self._replay.place(wanted)
        if placed is None:
            return None
        self._held.append(placed)
        return placed.device

    def end(self, which: int) -> None:
        """End one of the allocated claims, selected by its index."""
        self._replay.release(self._held.pop(which))


class Allocated:
    """Allocates with the agent's allocator."""

    def __init__(self, slices: list[dict[str, Any]]) -> None:
        self._cluster = Cluster(slices, CLASSES)
        self._held: list[dict[str, Any]] = []
        self._count = 0

    def place(self, wanted: str) -> str | None:
        """Return the device that a claim gets, or None."""
        name = f"c{self._count}"
        self._count += 1
        request = {"name": "gpu", "exactly": {"deviceClassName": class_of(wanted)}}
        claim: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"devices": {"requests": [request]}},
        }
        answer = self._cluster.allocate("node-1", [claim])
        if answer["error"] is not None:
            raise SystemExit(f"no answer: {answer['error']}")
        if not answer["allocated"]:
            return None
        allocation = answer["results"][0]
        held = {**claim, "status": {"allocation": allocation}}
        self._cluster.hold([held])
        self._held.append(held)
        device: str = allocation["devices"]["results"][0]["device"]
        return device

    def end(self, which: int) -> None:
        """End one of the allocated claims, selected by its index."""
        self._cluster.release([self._held.pop(which)])


def sequence(node: Counted | Allocated, mix: Mapping[str, int], leaving: float, seed: int) -> list[str]:
    """Run one sequence up to the first refusal; return the devices in the order of their allocation."""
    chance = random.Random(seed)
    held = 0
    placed: list[str] = []
    while True:
        if held and chance.random() < leaving:
            node.end(chance.randrange(held))
            held -= 1
            continue
        device = node.place(chance.choices(list(mix), list(mix.values()))[0])
        if device is None:
            return placed
        placed.append(device)
        held += 1


if __name__ == "__main__":
    main()
