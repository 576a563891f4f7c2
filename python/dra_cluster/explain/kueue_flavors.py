"""ResourceFlavors of Kueue: which pods can have one, and on which nodes their pods are then.

Kueue adds the node labels of the assigned flavors to the node selector of the pods, and their tolerations to those of
the pods. It compares only the parts of node selector and affinity that have a label of the flavor, and chooses the
flavor of a resource group without those of others (pkg/scheduler/flavorassigner at 8eab68778fc1). So the labels of
each group are compared alone; a taint of the node is tolerated if any of the flavors tolerates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_agent.api_object import Object
from dra_cluster.explain.capacity import fields_read, node_blockers
from dra_cluster.explain.placement import tolerates, untolerated

MAX_TAINT_SETS = 128
"""Sets of taints of a node that can remain with different flavors; those that have another one as a part do not count.
A node with at most 9 taints has no more: 9 over 4 are 126."""
NOT_EVALUATED = "not evaluated"
_Permitted = tuple[tuple[int, ...], ...]
"""For each group, the numbers of flavors."""
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


class FlavoredPods:
    """Pods with one of these flavors of each group, which are compared with nodes.

    What nodes with the same taints and the same permitted flavors have in common is computed once.
    """

    def __init__(self, choice: FlavorChoice, pod: Object) -> None:
        """Compare with no node yet."""
        self._spec = pod.get("spec") or {}
        self._flavors = [flavor for group in choice for flavor in group]
        numbers = iter(range(len(self._flavors)))
        self._groups = [[next(numbers) for _ in group] for group in choice if group]
        self._compared: dict[str, set[int]] = {}
        """For each taint, as a reason, the flavors that were compared with it."""
        self._tolerant: dict[str, set[int]] = {}
        """Those of them that tolerate it."""
        self._fewest: dict[tuple[frozenset[str], _Permitted], frozenset[str] | None] = {}

    def blockers(self, node: Object) -> list[str]:
        """Return why the pods cannot be on a node, without devices; empty if they can.

        The only reason begins with NOT_EVALUATED if that is not known.

        Raises:
            PermanentError: A field has a wrong type.
        """
        with fields_read(node):
            return self._blockers(node)

    def _blockers(self, node: Object) -> list[str]:
        labels = (node.get("metadata") or {}).get("labels") or {}
        found: list[str] = []
        permitted: list[tuple[int, ...]] = []
        for group in self._groups:
            matching = [number for number in group if _has_labels(self._flavors[number], labels)]
            permitted.append(tuple(matching or group[:1]))
            if not matching:
                found += _missing_labels(self._flavors[group[0]], labels)
                if others := len(group) - 1:
                    found.append(
                        f"{others} other ResourceFlavor{'s do' if others > 1 else ' does'} not match the node either"
                    )
        own = dict(untolerated(self._spec.get("tolerations") or (), node.get("spec") or {}))
        remaining = self._remaining_taints(tuple(permitted), own)
        kept = own.keys() if remaining is None else remaining
        reasons = node_blockers({"spec": self._spec}, node)
        found += [reason for reason in reasons if reason not in own or reason in kept]
        if remaining is None and own.keys() >= set(found):
            number = f"more than {MAX_TAINT_SETS} combinations of ResourceFlavors"
            return [f"{NOT_EVALUATED}: {number} tolerate different taints of the node"]
        return found

    def _remaining_taints(self, permitted: _Permitted, own: Mapping[str, Mapping[str, Any]]) -> frozenset[str] | None:
        """Return the fewest taints that pods with one flavor of each group do not tolerate; None if that is not known.

        Arguments:
            permitted: The flavors of each group.
            own: The taints that the pods do not tolerate without a flavor, by reason.
        """
        flavors = {flavor for group in permitted for flavor in group}
        # A taint that no flavor tolerates remains in any case. Without it, more nodes are alike.
        tolerated = frozenset(
            reason for reason, taint in own.items() if not flavors.isdisjoint(self._tolerating(reason, taint, flavors))
        )
        known = (tolerated, permitted)
        if known not in self._fewest:
            self._fewest[known] = self._fewest_taints(tolerated, permitted)
        fewest = self._fewest[known]
        return None if fewest is None else fewest | (own.keys() - tolerated)

    def _tolerating(self, reason: str, taint: Mapping[str, Any], flavors: set[int]) -> set[int]:
        """Return the flavors that tolerate a taint: those of `flavors`, and others that were compared earlier."""
        compared = self._compared.setdefault(reason, set())
        tolerant = self._tolerant.setdefault(reason, set())
        for flavor in flavors - compared:
            if any(tolerates(toleration, taint) for toleration in self._flavors[flavor].tolerations):
                tolerant.add(flavor)
        compared |= flavors
        return tolerant

    def _fewest_taints(self, tolerated: frozenset[str], permitted: _Permitted) -> frozenset[str] | None:
        found = {tolerated}
        for group in permitted if tolerated else ():
            of_flavors = {
                frozenset(reason for reason in tolerated if flavor not in self._tolerant[reason]) for flavor in group
            }
            found = _smallest(before & one for before in found for one in of_flavors)
            if len(found) > MAX_TAINT_SETS:
                return None
        return min(found, key=lambda taints: (len(taints), sorted(taints)))


def _smallest(sets: Iterable[frozenset[str]]) -> set[frozenset[str]]:
    """Return the sets of which no part is another one; of more than MAX_TAINT_SETS only one more than that."""
    found: list[frozenset[str]] = []
    for one in sorted(set(sets), key=len):
        if len(found) <= MAX_TAINT_SETS and not any(smaller <= one for smaller in found):
            found.append(one)
    return set(found)


def _has_labels(flavor: Flavor, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in flavor.labels.items())


def _missing_labels(flavor: Flavor, labels: Mapping[str, str]) -> Iterable[str]:
    for key, value in flavor.labels.items():
        if labels.get(key) != value:
            has = f"has {key}={labels[key]}" if key in labels else f"has no label {key}"
            yield f"ResourceFlavor {flavor.name} requires {key}={value}, the node {has}"
