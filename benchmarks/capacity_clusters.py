"""Random clusters and workloads for `capacity.py`: nodes with slices of simulated hosts, and pods that need devices.

The same seed gives the same cluster and the same workload.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from drivers import AGENT, HERE

Object = dict[str, Any]
DRIVER = "dra-agent.internal"
PLACEHOLDER = "node-of-a-kind"
"""The node in the slices of a kind; it is replaced by each name of a node."""
ZONES = 8
ZONE = "topology.kubernetes.io/zone"
NODE_TAINT: Object = {"key": "example.com/dedicated", "value": "training", "effect": "NoSchedule"}
DEVICE_TAINT: Object = {"key": "example.com/degraded", "value": "ecc", "effect": "NoSchedule"}
PARTITIONED = """\
[[inventory.partition]]
when = 'device.attributes["dra-agent.internal"].vendor == "nvidia"'
mode = "mig"
"""
SHARED = """\
[[inventory.share]]
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
enforcement = "none"
minimum = "2Gi"
step = "2Gi"
default = "8Gi"
"""


@dataclass(frozen=True)
class Kind:
    """A kind of node: a simulated host with the agent's configuration."""

    profile: str
    config: str = ""
    whole: bool = True
    """Whether nodes may lack some of the devices. Partitions of a GPU belong together, so they are all there."""


KINDS = (
    Kind("dgx-h100"),
    Kind("l40s"),
    Kind("l40s", SHARED),
    Kind("vm-1gpu"),
    Kind("mixed"),
    Kind("mi210"),
    Kind("mi300x"),
    Kind("flex170"),
    Kind("a30", PARTITIONED, whole=False),
    Kind("h100-pcie", PARTITIONED, whole=False),
    Kind("aws-p4d"),
    Kind("trn1"),
    Kind("cpu-only"),
)


@dataclass
class Node:
    """A Node and its slices, as they are created."""

    name: str
    labels: dict[str, str]
    taints: list[Object]
    unschedulable: bool
    slices: list[Object]


@dataclass
class Workload:
    """Pods of which each has these claims for itself."""

    name: str
    claims: list[Object]
    """The `devices` of each claim."""
    tolerations: list[Object] = field(default_factory=list)
    zone: str = ""

    def pod_spec(self, sources: Sequence[Object]) -> Object:
        """Return the spec of a pod; each source is a claim or template, `{"resourceClaimName": ...}`."""
        names = [f"claim-{number}" for number in range(len(self.claims))]
        return {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            **({"nodeSelector": {ZONE: self.zone}} if self.zone else {}),
            "tolerations": self.tolerations,
            "resourceClaims": [{"name": name, **source} for name, source in zip(names, sources, strict=True)],
            "containers": [
                {"name": "main", "image": "none", "resources": {"claims": [{"name": name} for name in names]}}
            ],
        }


def slices_of_kinds(folder: Path) -> list[list[Object]]:
    """Ask the agent for the slices of every kind; the files of the configuration are written to the folder."""
    return [slices_of_kind(kind, folder / f"kind-{number}.toml") for number, kind in enumerate(KINDS)]


def slices_of_kind(kind: Kind, config: Path) -> list[Object]:
    """Ask the agent for the slices of one kind, on node PLACEHOLDER; its configuration is written to the file."""
    config.write_text(kind.config)
    command = [str(AGENT), "slices", f"--simulate={kind.profile}", f"--config={config}", "--node-name", PLACEHOLDER]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, check=True)
    found: list[Object] = json.loads(done.stdout)["items"]
    return found


def classes() -> list[Object]:
    """Return the DeviceClasses of the examples."""
    import yaml

    files = sorted((HERE.parent / "examples" / "classes").glob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]


def make_nodes(chance: Random, kinds: Sequence[list[Object]], count: int, prefix: str) -> list[Node]:
    """Choose kinds, devices that are missing, taints of devices and nodes, cordons and zones."""
    nodes = []
    for number in range(count):
        name = f"{prefix}-{number}"
        place = chance.randrange(len(KINDS))
        nodes.append(
            Node(
                name,
                {"kubernetes.io/hostname": name, ZONE: f"zone-{chance.randrange(ZONES)}"},
                [NODE_TAINT] if chance.random() < 0.1 else [],
                chance.random() < 0.05,
                _slices(chance, kinds[place], name, thinned=KINDS[place].whole),
            )
        )
    return nodes


def _slices(chance: Random, kind: list[Object], node: str, *, thinned: bool) -> list[Object]:
    slices: list[Object] = json.loads(json.dumps(kind).replace(PLACEHOLDER, node))
    share = chance.choice((0.2, 0.5, 1.0)) if thinned else 1.0
    for entry in slices:
        devices = entry["spec"].get("devices")
        if not devices:
            continue
        kept = [one for one in devices if chance.random() < share] or devices[:1]
        for device in kept:
            if chance.random() < 0.05:
                device["taints"] = [*device.get("taints", ()), DEVICE_TAINT]
        entry["spec"]["devices"] = kept
    return slices


def make_workload(chance: Random) -> Workload:
    """Choose claims and tolerations."""
    name, make = chance.choice(WORKLOADS)
    claims = make(chance)
    if chance.random() < 0.3:
        for request in (one for claim in claims for one in claim["requests"]):
            for exact in request.get("firstAvailable") or [request["exactly"]]:
                exact["tolerations"] = [{"key": DEVICE_TAINT["key"], "operator": "Exists"}]
    tolerations = [{"key": NODE_TAINT["key"], "operator": "Exists"}] if chance.random() < 0.3 else []
    return Workload(name, claims, tolerations)


def _exactly(name: str, device_class: str, **more: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def _at_least(memory: str) -> list[Object]:
    capacity = f'device.capacity["{DRIVER}"]'
    expression = f'has({capacity}.memory) && {capacity}.memory.compareTo(quantity("{memory}")) >= 0'
    return [{"cel": {"expression": expression}}]


def _same(attribute: str, *requests: str) -> list[Object]:
    return [{"requests": list(requests), "matchAttribute": attribute}]


def _one_gpu(chance: Random) -> list[Object]:
    selectors = _at_least(chance.choice(("10Gi", "40Gi", "70Gi")))
    return [{"requests": [_exactly("gpu", "gpu", selectors=selectors)]}]


def _aligned_gpus(chance: Random) -> list[Object]:
    attribute = chance.choice(("resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"))
    count = chance.choice((2, 2, 3, 4))
    return [{"requests": [_exactly("gpus", "gpu", count=count)], "constraints": _same(attribute, "gpus")}]


def _gpu_and_nic(chance: Random) -> list[Object]:
    attribute = chance.choice((f"{DRIVER}/pcieSwitch", "resource.kubernetes.io/numaNode"))
    requests = [_exactly("gpu", "gpu"), _exactly("nic", "rdma-nic")]
    return [{"requests": requests, "constraints": _same(attribute, "gpu", "nic")}]


def _gpu_and_nic_in_two_claims(chance: Random) -> list[Object]:
    return [
        {"requests": [_exactly("gpu", "gpu", count=chance.choice((1, 2)))]},
        {"requests": [_exactly("nic", "rdma-nic")]},
    ]


def _partition(chance: Random) -> list[Object]:
    count, memory = chance.choice(((1, "9Gi"), (1, "20Gi"), (1, "35Gi"), (2, "5Gi")))
    return [{"requests": [_exactly("part", "mig", count=count, selectors=_at_least(memory))]}]


def _partition_or_gpu(chance: Random) -> list[Object]:
    first = {"name": "part", "deviceClassName": "mig", "selectors": _at_least(chance.choice(("10Gi", "20Gi")))}
    return [{"requests": [{"name": "any", "firstAvailable": [first, {"name": "whole", "deviceClassName": "gpu"}]}]}]


def _share(chance: Random) -> list[Object]:
    capacity = {"requests": {"memory": chance.choice(("7Gi", "12Gi", "24Gi"))}}
    return [{"requests": [_exactly("share", "nvidia-share", capacity=capacity)]}]


def _all_nics(chance: Random) -> list[Object]:
    requests = [_exactly("nics", "rdma-nic", allocationMode="All")]
    return [{"requests": [*requests, _exactly("gpu", "gpu")] if chance.random() < 0.5 else requests}]


WORKLOADS: tuple[tuple[str, Callable[[Random], list[Object]]], ...] = (
    ("one GPU by memory", _one_gpu),
    ("aligned GPUs", _aligned_gpus),
    ("aligned GPU and NIC", _gpu_and_nic),
    ("GPU and NIC in two claims", _gpu_and_nic_in_two_claims),
    ("partition by memory", _partition),
    ("partition, else GPU", _partition_or_gpu),
    ("share of a GPU", _share),
    ("all NICs", _all_nics),
)
