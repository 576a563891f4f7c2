"""Claims for `drivers.py`: it writes the allocation that the scheduler would write, with administrator permissions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drivers_plane import ControlPlane

GROUP = "/apis/resource.k8s.io/v1"
NAMESPACE = "bench"


@dataclass(frozen=True)
class Claim:
    """A claim as the kubelet identifies it to a driver."""

    namespace: str
    name: str
    uid: str


def make_namespace(plane: ControlPlane) -> None:
    """Create the namespace of all claims, which allows admin access, so that many claims can use one device."""
    labels = {"resource.kubernetes.io/admin-access": "true"}
    plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})


def make_node(plane: ControlPlane, node: str) -> None:
    """Create the Node that owns the slices."""
    plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}})


def published(plane: ControlPlane, driver: str) -> list[tuple[str, str]]:
    """List the pool and name of every device that a driver has published."""
    items = plane.ask("GET", f"{GROUP}/resourceslices")["items"]
    return [
        (one["spec"]["pool"]["name"], device["name"])
        for one in items
        if one["spec"]["driver"] == driver
        for device in one["spec"].get("devices", ())
    ]


def make_claims(
    plane: ControlPlane,
    start: str,
    count: int,
    *,
    driver: str,
    node: str,
    devices: Sequence[tuple[str, str]],
    admin: bool = False,
) -> list[Claim]:
    """Create and allocate claims for one device each, round-robin; with admin access if `admin`."""
    path = f"{GROUP}/namespaces/{NAMESPACE}/resourceclaims"
    made = []
    for number in range(count):
        exactly: dict[str, object] = {"deviceClassName": "any"}
        pool, device = devices[number % len(devices)]
        result: dict[str, object] = {"request": "device", "driver": driver, "pool": pool, "device": device}
        if admin:
            exactly["adminAccess"] = result["adminAccess"] = True
        body = {
            "metadata": {"name": f"{start}-{number}"},
            "spec": {"devices": {"requests": [{"name": "device", "exactly": exactly}]}},
        }
        claim = plane.ask("POST", path, body)
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
        claim["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}
        meta = plane.ask("PUT", f"{path}/{start}-{number}/status", claim)["metadata"]
        made.append(Claim(NAMESPACE, meta["name"], meta["uid"]))
    return made
