"""Extended resources that DeviceClasses provide (KEP-5004): the claim that kube-scheduler creates for a pod.

Source: pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go at v1.37.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dra_agent.api_object import Object
from dra_cluster.amount import amount

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resources that every DeviceClass has."""


def claim_of_extended_resources(
    pod: Object, namespace: str, classes: Iterable[Object], *, without: Iterable[str] = ()
) -> Object | None:
    """Return the claim that kube-scheduler creates for the extended resources of a pod; None without any.

    `without` names the resources that the device plugin of the node serves.
    """
    served = set(without)
    by_resource = {name: of_class for name, of_class in _classes_by_resource(classes).items() if name not in served}
    containers = [_amounts(container) for container in _containers(pod)]
    requests = [
        {
            "name": f"container-{index}-request-{sorted(containers[index]).index(resource)}",
            "exactly": {"deviceClassName": by_resource[resource], "allocationMode": "ExactCount", "count": count},
        }
        for resource in sorted({name for amounts in containers for name in amounts} & by_resource.keys())
        for index, count in _requests(pod, [amounts.get(resource, 0) for amounts in containers])
    ]
    if not requests:
        return None
    metadata = {"name": f"{pod['metadata']['name']}-extended-resources", "namespace": namespace}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": sorted(requests, key=lambda request: str(request["name"]))}},
    }


def resources_of(pod: Object, classes: Iterable[Object]) -> dict[str, int]:
    """Return the extended resources of DeviceClasses that a pod requests, as quotas and kube-scheduler count them.

    Those of containers that run at the same time are added: PodRequests, k8s.io/component-helpers/resource.
    """
    names = {name for container in _containers(pod) for name in _quantities(container)}
    of_classes = sorted(names & _classes_by_resource(classes).keys())
    return {resource: count for resource in of_classes if (count := requested(pod, resource))}


def resources_without_class(pod: Object, classes: Iterable[Object]) -> dict[str, int]:
    """Return the extended resources of a pod that no DeviceClass provides: only device plugins can serve them.

    Source of what an extended resource is: IsExtendedResourceName, k8s.io/kubernetes/pkg/apis/core/v1/helper.
    """
    names = {name for container in _containers(pod) for name in _quantities(container) if is_extended(name)}
    without = sorted(names - _classes_by_resource(classes).keys())
    return {resource: count for resource in without if (count := requested(pod, resource))}


def unused_classes(pod: Object, message: str, classes: Iterable[Object], nodes: Iterable[Object]) -> dict[str, str]:
    """Return the extended resources of a pod whose class kube-scheduler does not use, each with this class.

    `message` is what kube-scheduler reports about the pod. It reports too little of a resource, instead of devices that
    cannot be allocated, if it has no class for the resource; or if the device plugin of a node has too little.
    """
    by_resource = _classes_by_resource(classes)
    reported = {name for name in resources_of(pod, classes) if re.search(_insufficient(name), message)}
    served = {name for node in nodes for name in of_device_plugin(node, reported)} if reported else set()
    return {name: by_resource[name] for name in sorted(reported - served)}


def _insufficient(resource: str) -> str:
    """Return the pattern of the reason for a node, of several that are separated by commas and end with a point."""
    return rf"Insufficient {re.escape(resource)}(?:[,;]|\.?(?:\s|$))"


def is_extended(name: str) -> bool:
    """Return whether a resource of a container is an extended one (IsExtendedResourceName)."""
    is_native = "/" not in name or "kubernetes.io/" in name
    return name.startswith(IMPLICIT) or not (is_native or name.startswith("requests."))


def requested(pod: Object, resource: str) -> int:
    """Return how much of an extended resource a pod requests: what its containers use at the same time."""
    running, most = 0, 0
    for container, is_short in zip(_containers(pod), _are_short_lived(pod), strict=True):
        count = _whole(_quantities(container).get(resource))
        most = max(most, running + count)
        running += 0 if is_short else count
    return most


def allocatable(node: Object, resource: str) -> int:
    """Return how much of an extended resource the device plugin of a node serves; 0 for none."""
    return _whole(((node.get("status") or {}).get("allocatable") or {}).get(resource))


def of_device_plugin(node: Object, resources: Iterable[str]) -> list[str]:
    """Return which of these resources the device plugin of a node serves: a pod there gets no claim for them.

    Source: filterExtendedResources.
    """
    return [name for name in resources if allocatable(node, name)]


def served_by_device_plugins(
    pods: Iterable[Object], nodes: Iterable[Object], classes: Iterable[Object], *, with_others: bool = False
) -> list[str]:
    """Return the extended resources of DeviceClasses that pods request, and that device plugins of nodes serve.

    `with_others`: also those that no DeviceClass provides.
    """
    asked = {name for pod in pods for container in _containers(pod) for name in _quantities(container)}
    names = asked & _classes_by_resource(classes).keys()
    if with_others:
        names |= {name for name in asked if is_extended(name)}
    served = {name for node in nodes for name in of_device_plugin(node, names)} if names else set()
    return sorted(served)


def _requests(pod: Object, counts: list[int]) -> Iterable[tuple[int, int]]:
    """Yield for which containers devices are requested, and how many, of one resource.

    An init container that ends uses the devices of the containers that start after it, and one request has the most
    devices that such init containers need in addition.
    """
    is_short = _are_short_lived(pod)
    lasting = [0 if short else count for count, short in zip(counts, is_short, strict=True)]
    yield from ((index, count) for index, count in enumerate(lasting) if count)
    additional = [
        count - sum(lasting[index:]) if short else 0
        for index, (count, short) in enumerate(zip(counts, is_short, strict=True))
    ]
    most = max(additional, default=0)
    if most > 0:
        yield additional.index(most), most


def _containers(pod: Object) -> list[Object]:
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _are_short_lived(pod: Object) -> list[bool]:
    """Return for each container whether it ends before others start: an init container that is not a sidecar."""
    spec = pod.get("spec") or {}
    init = [container.get("restartPolicy") != "Always" for container in spec.get("initContainers") or ()]
    return [*init, *(False for _ in spec.get("containers") or ())]


def _amounts(container: Object) -> dict[str, int]:
    return {name: _whole(value) for name, value in _quantities(container).items()}


def _quantities(container: Object) -> Mapping[str, object]:
    """Return the requests of a container, by resource; a limit without a request is one, as the API server adds it."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _whole(value: object) -> int:
    """Return a number of devices; 0 for a quantity that is not one."""
    number = amount(value)
    return int(number) if number is not None and number.denominator == 1 and 0 < number < 1 << 63 else 0


def _classes_by_resource(classes: Iterable[Object]) -> dict[str, str]:
    """Return the class that serves each extended resource: of several the newest one, then the first by name.

    Source: k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache.
    """
    by_name = sorted(classes, key=lambda one: str(one["metadata"]["name"]))
    newest = sorted(by_name, key=lambda one: str(one["metadata"].get("creationTimestamp") or ""), reverse=True)
    found: dict[str, str] = {}
    for one in newest:
        name = str(one["metadata"]["name"])
        found[IMPLICIT + name] = name
        if explicit := (one.get("spec") or {}).get("extendedResourceName"):
            found.setdefault(explicit, name)
    return found
