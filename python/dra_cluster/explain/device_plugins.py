"""Nodes whose device plugin serves extended resources of a pod: whether it has enough left for the pod.

Where `status.allocatable` of a node has an extended resource, kube-scheduler creates no claim for it, and compares it
with the requests of all pods of the node. The other resources of the pod are still those of a claim.

Source: shouldDelegateResourceToDRA and fitsRequest (plugins/noderesources/fit.go), filterExtendedResources
(plugins/dynamicresources/extendeddynamicresources.go) in pkg/scheduler/framework at v1.37.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from dra_agent.api_object import Object
from dra_cluster.explain.extended_resources import (
    allocatable,
    claim_of_extended_resources,
    of_device_plugin,
    requested,
    resources_without_class,
)
from dra_cluster.explain.pod_claims import PodClaim, extended_need
from dra_cluster.explain.snapshot import Snapshot

_ENDED = ("Succeeded", "Failed")


class DevicePlugins:
    """The device plugins of all nodes, for the extended resources of one pod that has no claim for them yet."""

    def __init__(self, snapshot: Snapshot, pod: Object | None, needs: Iterable[PodClaim]) -> None:
        """Compute nothing yet; without a pod, or extended resources of it, no device plugin serves it."""
        self._snapshot = snapshot
        self._pod = pod or {}
        self._need = extended_need(needs)
        self._without: dict[tuple[str, ...], Object | None] = {}

    @cached_property
    def others(self) -> Mapping[str, int]:
        """The extended resources of the pod that no DeviceClass provides; empty if the classes are not known."""
        classes = self._snapshot.classes
        return {} if classes is None else resources_without_class(self._pod, classes)

    @property
    def is_known(self) -> bool:
        """Whether it is known what device plugins have left."""
        return self._used is not None

    @property
    def resources(self) -> Mapping[str, int]:
        """The extended resources of the pod, with the number of devices that it requests."""
        return {} if self._need is None else self._need.resources

    def serves(self, node: Object) -> tuple[str, ...]:
        """Return which resources of the pod the device plugin of a node serves."""
        return tuple(of_device_plugin(node, sorted(self.resources)))

    def claims(self, waiting: Sequence[Object], served: tuple[str, ...]) -> list[Object]:
        """Return which of the claims the pod needs on a node whose device plugin serves these resources."""
        if not served or self._need is None:
            return list(waiting)
        rest = self.rest(served)
        claims = (rest if claim is self._need.claim else claim for claim in waiting)
        return [claim for claim in claims if claim is not None]

    def rest(self, served: tuple[str, ...]) -> Object | None:
        """Return the pod's claim for the extended resources that are not served; None if all of them are."""
        if served not in self._without:
            self._without[served] = claim_of_extended_resources(
                self._pod, self._snapshot.namespace, self._snapshot.classes or (), without=served
            )
        return self._without[served]

    def free(self, node: Object, resource: str) -> int | None:
        """Return how much of a resource the pods of a node leave free; None if they are not known."""
        if self._used is None:
            return None
        return max(0, allocatable(node, resource) - self._used[node["metadata"]["name"], resource])

    def more(self, node: Object) -> int | None:
        """Return for how many more of these pods the device plugin of a node has enough; None if that is not known."""
        numbers = [
            free // self.resources[name] for name in self.serves(node) if (free := self.free(node, name)) is not None
        ]
        return min(numbers, default=None)

    def lacks(self, node: Object, taken: Mapping[tuple[str, str], int] | None = None) -> str:
        """Return what the device plugin of a node has not enough of for one more pod; "" if there is enough.

        `taken` is what other pods than those of the cluster use, by node and resource.
        """
        name_of_node = node["metadata"]["name"]
        lacking = []
        for name in self.serves(node):
            free = self.free(node, name)
            if free is None:
                continue
            free = max(0, free - (taken or {}).get((name_of_node, name), 0))
            if free < self.resources[name]:
                lacking.append(f"{name}: {self.resources[name]} needed, {free} of {allocatable(node, name)} free")
        return f"its device plugin serves {'; '.join(lacking)}" if lacking else ""

    def lacks_others(self, node: Object) -> list[str]:
        """Return why a node has not enough of the resources that no DeviceClass provides, as far as that is known."""
        found = []
        for name, needed in self.others.items():
            amount = allocatable(node, name)
            if not amount:
                found.append(f"no device plugin serves {name} on it, and no DeviceClass provides it")
            elif (free := self.free(node, name)) is not None and free < needed:
                found.append(f"its device plugin serves {name}: {needed} needed, {free} of {amount} free")
        return found

    @cached_property
    def _used(self) -> Counter[tuple[str, str]] | None:
        """What pods request, by node and resource, as kube-scheduler adds it up: until a pod has ended or is gone."""
        pods = self._snapshot.placed_pods
        if pods is None:
            return None
        used = Counter[tuple[str, str]]()
        for pod in pods:
            node = (pod.get("spec") or {}).get("nodeName")
            if node and (pod.get("status") or {}).get("phase") not in _ENDED:
                for name in (*self.resources, *self.others):
                    used[node, name] += requested(pod, name)
        return used


def named(resources: Iterable[str]) -> str:
    """Return that a device plugin serves these resources, as the begin of a sentence."""
    return f"its device plugin serves {', '.join(resources)}"
