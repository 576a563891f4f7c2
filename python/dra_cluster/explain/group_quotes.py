"""Pod groups as far as alpha features of Kubernetes decide about them: quotes of their conditions."""

from __future__ import annotations

from dra_agent.api_object import Object
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.quote import COMPOSITE_GATE, KUBE_SCHEDULER, TOPOLOGY_GATE, no_quote, quote
from dra_cluster.explain.snapshot import Snapshot, parent_name
from dra_cluster.explain.workloads import COMPOSITE, POD_GROUP

MAX_QUOTED_GROUPS = 10
"""Pod groups of a composite one that are quoted."""


def quotes_of_group(snapshot: Snapshot, group: Object) -> list[Object]:
    """Return the quotes of a pod group with a topology or a parent, and of that parent; empty for other groups."""
    topology = ((group.get("spec") or {}).get("schedulingConstraints") or {}).get("topology") or ()
    quotes = []
    if topology:
        labels = ", ".join(str(one.get("key")) for one in topology)
        quotes.append(_of_group(group, f"{TOPOLOGY_GATE}: nodes with the same value of label {labels}"))
    if parent := parent_name(group):
        quotes += [*([] if quotes else [_of_group(group, COMPOSITE_GATE)]), _composite(snapshot, parent)]
    return quotes


def gang_of_composite(snapshot: Snapshot, subject: str, value: Object) -> Gang:
    """Return the gang of a composite pod group, of which no pod is evaluated, with the quotes of its pod groups.

    kube-scheduler 1.37 writes conditions of pod groups only.
    """
    name = value["metadata"]["name"]
    gang = Gang(subject, [], [], 0, problems=[f"is not evaluated as a whole ({COMPOSITE_GATE})"])
    gang.quotes.append(quote(COMPOSITE, value, KUBE_SCHEDULER, not_evaluated=COMPOSITE_GATE))
    if parent := parent_name(value):
        gang.quotes.append(_composite(snapshot, parent))
    groups = [one for one in snapshot.groups or () if parent_name(one) == name]
    gang.quotes += [_of_group(one, COMPOSITE_GATE) for one in groups[:MAX_QUOTED_GROUPS]]
    if len(groups) > MAX_QUOTED_GROUPS:
        gang.notes.append(f"{len(groups) - MAX_QUOTED_GROUPS} more of its pod groups are not quoted")
    if groups:
        first = groups[0]["metadata"]["name"]
        gang.notes.append(f"`dra-agent explain podgroup/{first}` evaluates the devices of pod group {first}")
    return gang


def _of_group(group: Object, not_evaluated: str) -> Object:
    return quote(POD_GROUP, group, KUBE_SCHEDULER, not_evaluated=not_evaluated)


def _composite(snapshot: Snapshot, name: str) -> Object:
    if (value := snapshot.composite(name)) is not None:
        return quote(COMPOSITE, value, KUBE_SCHEDULER, not_evaluated=COMPOSITE_GATE)
    known = snapshot.composites is not None
    missing = "there is no such object" if known else "composite pod groups of the namespace are not known"
    return no_quote(COMPOSITE, name, missing, not_evaluated=COMPOSITE_GATE)
