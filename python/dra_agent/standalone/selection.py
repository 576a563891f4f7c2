"""Which devices the selectors of a spec choose: specs that differ in nothing else have the same results.

Thousands of waiting claims with different selectors have few different choices on one host. The result for one of the
claims is that of all of them, so a freed device costs a query for each choice, and not one for each claim
(docs/adr/0064-waiting-claims-by-chosen-devices.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.api_object import Object, results_of, subrequests_of
from dra_agent.cluster import Cluster
from dra_agent.errors import PermanentError
from dra_agent.standalone.allocator import GATES
from dra_agent.standalone.groups import digest_of
from dra_agent.standalone.relaxed import relaxed

MAX_DEVICES = 32
"""The API's limit of devices in a claim."""
MAX_SPECS = 1000
"""After so many specs the cluster is built again, because it keeps each selector that it has compiled."""
QUERY_TIMEOUT_S = 1.0


class DeviceSelection:
    """Not safe for threads: the steps of the queue use it on one thread.

    It asks a separate cluster, in which the devices are free and untainted and have no counters, for all devices of
    each request. The nodes of that cluster have at most MAX_DEVICES devices.
    """

    def __init__(self) -> None:
        self._slices: list[Object] = []
        self._classes: list[Object] = []
        self._cluster: Cluster | None = None
        self._nodes: list[str] = []
        self._nodes_of_class: dict[str, list[str]] = {}
        """The nodes with devices of a class."""
        self._specs = 0

    def key_of(self, spec: Object, classes: list[Object], slices: list[Object]) -> bytes | None:
        """Return a value that is equal for specs that get the same devices, with the same other claims.

        None where a selector cannot be evaluated on each device: a search may end before it reaches that device.
        """
        try:
            cluster = self._current(classes, slices)
            chosen = [self._chosen(cluster, one) for one in subrequests_of({"spec": spec})]
        except PermanentError:
            return None
        return None if None in chosen else digest_of([relaxed(spec), chosen])

    def forget(self) -> None:
        """Free the memory of the cluster."""
        self._cluster = None

    def _current(self, classes: list[Object], slices: list[Object]) -> Cluster:
        is_same = (slices is self._slices or slices == self._slices) and (
            classes is self._classes or classes == self._classes
        )
        if self._cluster is None or not is_same or self._specs >= MAX_SPECS:
            self._cluster, self._specs = None, 0
            parts = [*_parts(slices)]
            self._nodes = [part["spec"]["nodeName"] for part in parts]
            self._nodes_of_class = {}
            self._cluster = Cluster(parts, classes, gates=GATES)
            self._slices, self._classes = slices, classes
        self._specs += 1
        return self._cluster

    def _chosen(self, cluster: Cluster, choice: Object) -> list[str] | None:
        """Return the devices that a request or an alternative can use; None if that is not known."""
        name = choice.get("deviceClassName", "")
        nodes = self._nodes_of_class.get(name)
        if nodes is None:
            of_class = self._devices(cluster, self._nodes, {"deviceClassName": name})
            if of_class is None:
                return None
            nodes = self._nodes_of_class[name] = [node for node in self._nodes if of_class[node]]
        selectors = {"selectors": choice["selectors"]} if choice.get("selectors") else {}
        found = self._devices(cluster, nodes, {"deviceClassName": name, **selectors})
        return None if found is None else [one for devices in found.values() for one in devices]

    def _devices(self, cluster: Cluster, nodes: list[str], choice: Object) -> dict[str, list[str]] | None:
        request = {"name": "r", "exactly": {**choice, "allocationMode": "All"}}
        claim = {"metadata": {"name": "selection"}, "spec": {"devices": {"requests": [request]}}}
        found: dict[str, list[str]] = {}
        for node in nodes:
            result = cluster.allocate(node, [claim], deadline=QUERY_TIMEOUT_S)
            if result["error"] is not None:
                return None
            status = {"status": {"allocation": result["results"][0] if result["results"] else {}}}
            found[node] = [f"{node}/{one['device']}" for one in results_of(status)]
        return found


def _parts(slices: list[Object]) -> Iterator[Object]:
    """Return slices with what selectors can see of the devices (CEL: driver, attributes, capacity, and sharing)."""
    for number, published in enumerate(slices):
        devices = published["spec"].get("devices") or ()
        for first in range(0, len(devices), MAX_DEVICES):
            name = f"{number}-{first}"
            yield {
                "metadata": {"name": name},
                "spec": {
                    "driver": published["spec"]["driver"],
                    "nodeName": name,
                    "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                    "devices": [_seen_by_selectors(one) for one in devices[first : first + MAX_DEVICES]],
                },
            }


def _seen_by_selectors(device: Object) -> Object:
    seen: Object = {}
    for name in ("name", "attributes", "allowMultipleAllocations"):
        if name in device:
            seen[name] = device[name]
    if capacity := device.get("capacity"):
        seen["capacity"] = {name: {"value": one["value"]} for name, one in capacity.items()}
    return seen
