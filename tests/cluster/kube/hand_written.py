"""A Node without a kubelet, and the slices that a driver would publish for it: for decisions of the scheduler only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cluster.kube.api import NODES, PODS, SLICES, Object
from cluster.kube.cluster import Cluster

ROOM = {"cpu": "8", "memory": "8Gi", "pods": "100"}
ANYWHERE: Object = {"tolerations": [{"operator": "Exists"}]}
"""A Node without a kubelet gets the taints of one that is not ready."""


@contextmanager
def node_with_devices(
    cluster: Cluster,
    node: str,
    driver: str,
    devices: Sequence[Object],
    *,
    room: Object | None = None,
    labels: Object | None = None,
    declared_features: Sequence[str] = (),
    **spec: object,
) -> Iterator[None]:
    """Create a Node and its slice; `spec` has further fields of the slice.

    At the end its pods are deleted, and those without a node, which could get this one.
    """
    api, amounts = cluster.api, {**ROOM, **(room or {})}
    status: Object = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    if declared_features:
        status["declaredFeatures"] = list(declared_features)
    api.create(NODES, {"kind": "Node", "metadata": {"name": node, "labels": labels or {}}, "status": status})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    body = {"driver": driver, "pool": pool, "nodeName": node, "devices": list(devices), **spec}
    api.create(SLICES, {"kind": "ResourceSlice", "metadata": {"name": f"devices-{node}"}, "spec": body})
    try:
        yield
    finally:
        for pod in api.list(PODS):
            if pod["spec"].get("nodeName") in (None, node):
                api.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)
        api.delete(SLICES, f"devices-{node}")
        api.delete(NODES, node)
