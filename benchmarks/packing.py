"""How many claims for slices of eight H100 are placed before the first is refused: the agent's order against NVML's.

Claims come in random sequences of a mix of profiles, the same for both orders, and are decided by the agent's own
allocator on the ResourceSlices of a simulated DGX H100. "Leaving" is the share of events in which a random claim ends
instead of a new one coming. Compare the two columns; the mixes are made up.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dra_agent import simulate
from dra_agent.allocator import allocate
from dra_agent.inventory import Collector, Device, Inventory, InventorySettings, PartitionRule
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
    """Name the DeviceClass of a profile, or of whole GPUs."""
    return wanted.replace(".", "-").replace("+", "-")


def device_class(wanted: str) -> dict[str, Any]:
    """Make it."""
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
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--mix", choices=list(MIXES), action="append")
    args = parser.parse_args()
    orders = {"NVML's": published(by_table), "the agent's": published(lambda device: device.order)}
    print(f"claims placed before the first refusal, mean of {args.sequences} sequences, on 8 GPUs")
    print(f"{'mix':48}{'leaving':>8}{'NVML order':>12}{'agent order':>12}{'more':>8}")
    for mix in args.mix or MIXES:
        for leaving in (0.0, 0.4):
            placed: dict[str, list[int]] = {name: [] for name in orders}
            for seed in range(args.sequences):
                for name, slices in orders.items():
                    placed[name].append(sequence(slices, MIXES[mix], leaving, random.Random(seed)))
            table, agent = (statistics.mean(placed[name]) for name in orders)
            more = f"{(agent / table - 1) * 100:+.1f} %"
            print(f"{mix:48}{leaving:8.0%}{table:12.1f}{agent:12.1f}{more:>8}", flush=True)


def published(order: Callable[[Device], int]) -> list[dict[str, Any]]:
    """Give the slices of the GPUs with their devices in that order on each GPU."""
    rule = PartitionRule(when=f'device.attributes["{DRIVER}"].type == "gpu"', mode="mig")
    with tempfile.TemporaryDirectory() as directory:
        host = simulate.build("dgx-h100", Path(directory) / "host")
        collector = Collector(host, InventorySettings(partition=(rule,)))
        found = collector.take(LiveTopology(host).snapshot())
        collector.close()
    devices = tuple(msgspec.structs.replace(device, order=order(device)) for device in found.family("gpu"))
    only = Inventory(devices=devices, counter_sets=found.counter_sets)
    return desired_slices(only, node="node-1", driver=DRIVER, naming="fixed").slices


def by_table(device: Device) -> int:
    """NVML's profiles in their order, each with its places in theirs; the whole GPU before them."""
    profile = device.attributes.get("profile")
    if profile is None:
        return 0
    start = int(device.identity["mig"].split(":")[1])
    return 1 + TABLE.index(str(profile.value)) * 8 + start


def sequence(slices: list[dict[str, Any]], mix: Mapping[str, int], leaving: float, chance: random.Random) -> int:
    """Play one sequence; gives how many claims were placed."""
    held: list[dict[str, Any]] = []
    placed = 0
    while placed < 400:
        if held and chance.random() < leaving:
            held.pop(chance.randrange(len(held)))
            continue
        wanted = chance.choices(list(mix), list(mix.values()))[0]
        name = f"c{placed}"
        request = {"name": "gpu", "exactly": {"deviceClassName": class_of(wanted)}}
        claim: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"devices": {"requests": [request]}},
        }
        answer = allocate(node="node-1", classes=CLASSES, slices=slices, claims=[claim], allocated=held)
        if answer["error"] is not None:
            raise SystemExit(f"no answer: {answer['error']}")
        if not answer["allocated"]:
            break
        held.append({**claim, "status": {"allocation": answer["results"][0]}})
        placed += 1
    return placed


if __name__ == "__main__":
    main()
