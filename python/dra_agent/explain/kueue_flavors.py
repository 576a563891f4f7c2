"""ResourceFlavors of Kueue: which pods can have one, and on which nodes their pods are then.

Kueue adds the node labels of the assigned flavors to the node selector of the pods, and their tolerations to those of
the pods. It compares only the parts of node selector and affinity that have a label of the flavor
(pkg/scheduler/flavorassigner at 8eab68778fc1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from dra_agent.api_object import Object
from dra_agent.explain.capacity import node_blockers

MAX_COMBINATIONS = 64
"""Combinations of one flavor of each resource group that are compared with a node."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of its nodes."""
    taints: Sequence[Object] = ()
    """Of its nodes."""
    tolerations: Sequence[Object] = ()
    """Which its pods get."""
    topology: str = ""


FlavorChoice = Sequence[Sequence[Flavor]]
"""For each resource group of a pod set, the flavors of which its pods have one."""


def flavor_of(value: Object) -> Flavor:
    """Return a flavor; `value` has the types of the API."""
    spec = value.get("spec") or {}
    return Flavor(
        value["metadata"]["name"],
        {str(key): str(label) for key, label in (spec.get("nodeLabels") or {}).items()},
        spec.get("nodeTaints") or (),
        spec.get("tolerations") or (),
        spec.get("topologyName") or "",
    )


def flavor_obstacle(flavor: Flavor, pod: Object) -> str | None:
    """Return why Kueue does not assign a flavor to pods; None if it can.

    Raises:
        PermanentError: A field of the pod has a wrong type.
    """
    spec = pod.get("spec") or {}
    node = {"metadata": {"name": f"flavor {flavor.name}", "labels": flavor.labels}, "spec": {}}
    relevant = {
        "nodeSelector": {key: value for key, value in (spec.get("nodeSelector") or {}).items() if key in flavor.labels},
        "affinity": {"nodeAffinity": {_REQUIRED: _relevant_affinity(spec, flavor.labels)}},
    }
    if node_blockers({"spec": relevant}, node):
        return "its node labels do not match the node selector or affinity of the pods"
    tolerations = [*(spec.get("tolerations") or ()), *flavor.tolerations]
    if node_blockers({"spec": {"tolerations": tolerations}}, {**node, "spec": {"taints": flavor.taints}}):
        return "the pods do not tolerate the taints of its nodes"
    return None


def _relevant_affinity(spec: Object, labels: Mapping[str, str]) -> Object | None:
    """Return the required node affinity with the expressions about these labels; None if a term has no such one."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        expressions = [one for one in term.get("matchExpressions") or () if str(one.get("key")) in labels]
        if not expressions:
            return None  # Terms are alternatives, and this one permits every flavor.
        terms.append({"matchExpressions": expressions})
    return {"nodeSelectorTerms": terms} if terms else None


def flavor_blockers(choice: FlavorChoice, pod: Object, node: Object) -> list[str]:
    """Return why pods with one of these flavors of each group cannot be on a node, without devices; empty if they can.

    Raises:
        PermanentError: A field has a wrong type.
    """
    spec = pod.get("spec") or {}
    labels = (node.get("metadata") or {}).get("labels") or {}
    first: list[str] = []
    for flavors in islice(product(*choice), MAX_COMBINATIONS):
        reasons = [reason for flavor in flavors for reason in _missing_labels(flavor, labels)]
        tolerations = [*(spec.get("tolerations") or ()), *(one for flavor in flavors for one in flavor.tolerations)]
        reasons += node_blockers({"spec": {**spec, "tolerations": tolerations}}, node)
        if not reasons:
            return []
        first = first or reasons
    return first


def _missing_labels(flavor: Flavor, labels: Mapping[str, str]) -> Iterable[str]:
    for key, value in flavor.labels.items():
        if labels.get(key) != value:
            has = f"has {key}={labels[key]}" if key in labels else f"has no label {key}"
            yield f"ResourceFlavor {flavor.name} requires {key}={value}, the node {has}"
