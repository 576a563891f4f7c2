"""The nodes on which the pods of a gang may be, by their own constraints and without devices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_agent.api_object import Object
from dra_agent.deadline import Deadline
from dra_cluster.explain.capacity import node_blockers
from dra_cluster.explain.device_plugins import DevicePlugins, named
from dra_cluster.explain.gang_members import MemberKind
from dra_cluster.explain.pending import LATE, NOT_EVALUATED

_PLACING = ("nodeSelector", "affinity", "tolerations")


@dataclass
class PermittedNodes:
    """The nodes, as far as the pods of one kind permit them."""

    usable: list[str] = field(default_factory=list)
    blocked: Counter[str] = field(default_factory=Counter)
    """Why others are not usable, with the number of nodes."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Those of which it is not known, with the reason."""


class NodeComparison:
    """Compares the nodes with kinds of pods: once for all kinds with the same constraints."""

    def __init__(self, nodes: Mapping[str, Object], deadline: Deadline, *, has_fields: bool) -> None:
        """Compare nothing yet.

        Arguments:
            nodes: The nodes by name.
            deadline: What is not compared until then is unknown.
            has_fields: The nodes are objects of the API. Otherwise only their names are known, and all are usable.
        """
        self._nodes = nodes
        self._deadline = deadline
        self._has_fields = has_fields
        self._known: dict[tuple[str, ...], PermittedNodes] = {}

    def permitted(self, kind: MemberKind, plugins: DevicePlugins) -> PermittedNodes:
        """Return the nodes that the pods of a kind permit, and whose device plugin has enough for one of them.

        Raises:
            PermanentError: A field of a pod or node has a wrong type.
        """
        spec = {key: value for key, value in (kind.pod.get("spec") or {}).items() if key in _PLACING}
        constraints = json.dumps(spec, sort_keys=True), repr(sorted(plugins.resources.items()))
        if constraints not in self._known:
            self._known[constraints] = self._compared({"spec": spec}, plugins)
        return self._known[constraints]

    def _compared(self, pod: Object, plugins: DevicePlugins) -> PermittedNodes:
        found = PermittedNodes()
        if not self._has_fields:
            found.usable = sorted(self._nodes)
            return found
        for name, node in self._nodes.items():
            if not self._deadline.remaining():
                found.unknown[name] = LATE
            elif not (reasons := node_blockers(pod, node) or _plugin_blockers(node, plugins)):
                found.usable.append(name)
            else:
                found.blocked["; ".join(reasons)] += 1
                if reasons[0].startswith(NOT_EVALUATED):
                    found.unknown[name] = reasons[0]
        found.usable.sort()
        return found


def _plugin_blockers(node: Object, plugins: DevicePlugins) -> list[str]:
    served = plugins.serves(node)
    if served and plugins.more(node) is None:
        return [f"{NOT_EVALUATED}: {named(served)}, and the pods of the node are not known"]
    return [reason] if (reason := plugins.lacks(node)) else []
