"""What no order of the members of a gang changes: a member that fits nowhere alone, or too few devices for all.

Both hold for every placement. The number of devices is computed without counters, constraints and other requests, so
it is never too low.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dra_agent.api_object import Object, allocation_of, identity_of, requests_of
from dra_agent.cluster import Cluster
from dra_agent.deadline import Deadline
from dra_agent.explain.gates import gates_in_use
from dra_cluster.explain.counts import counted
from dra_cluster.explain.gang_evaluation import Evaluation
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_plugins import GangPlugins
from dra_cluster.explain.pending import nodes_of
from dra_cluster.explain.snapshot import Snapshot

MIN_COUNT_S = 1.0
"""For all counts of devices, if the deadline is over."""
_SELECTING = ("deviceClassName", "selectors", "tolerations", "capacity")
"""The fields that decide which devices a request matches."""


class _Need(NamedTuple):
    kind: int
    request: str
    exactly: Object
    devices: int
    """Devices of each member."""


def impossible(evaluation: Evaluation, snapshot: Snapshot) -> str | None:
    """Return why no placement has enough members; None if that is not certain."""
    gang, nodes, plugins = evaluation.gang, evaluation.fitting, evaluation.plugins
    deadline = evaluation.deadline.at_least(MIN_COUNT_S)
    for number, kind in enumerate(gang.kinds):
        if kind.members and not nodes[number] and gang.total - len(kind.members) < gang.needed:
            return f"{kind.members[0].name} does not fit even without the other pods"
    if gang.needed < gang.total:
        return None
    slices = snapshot.slices or ()
    held = [claim for claim in snapshot.claims if allocation_of(claim)]
    cluster = Cluster(
        _without_counters(slices),
        snapshot.classes or (),
        nodes=nodes_of(snapshot).values(),
        claims=held,
        gates=gates_in_use(slices),
        scheduler_minor=snapshot.scheduler.minor,
    )
    needs = list(_needs(gang, plugins))
    for need in needs:
        if need.devices > 1 and _has_shares(slices):
            continue  # Which devices shares are taken from decides how many requests for several devices fit.
        members = len(gang.kinds[need.kind].members)
        most = _copies(cluster, need.exactly, need.devices, nodes[need.kind], members, deadline)
        if most is not None and most < members:
            each = f" ({need.devices} devices)" if need.devices > 1 else ""
            found = f"there are devices for request {need.request}{each} of {counted(most, 'pod')}"
            return f"{found}, and {gang.kinds[need.kind].name} has {members}"
    return _too_few_in_total(gang, cluster, needs, nodes, deadline)


def _without_counters(slices: Iterable[Object]) -> list[Object]:
    """Return slices whose devices do not exclude each other, and so have at least the room of the real ones."""
    return [
        {**entry, "spec": {**_without(spec, "sharedCounters"), "devices": devices}}
        if (devices := [_without(device, "consumesCounters") for device in spec.get("devices") or ()])
        else {**entry, "spec": _without(spec, "sharedCounters")}
        for entry in slices
        for spec in [entry.get("spec") or {}]
    ]


def _without(value: Object, key: str) -> Object:
    return {name: part for name, part in value.items() if name != key}


def _has_shares(slices: Iterable[Object]) -> bool:
    return any(
        device.get("allowMultipleAllocations")
        for entry in slices
        for device in (entry.get("spec") or {}).get("devices") or ()
    )


def _too_few_in_total(
    gang: Gang, cluster: Cluster, needs: Sequence[_Need], nodes: Sequence[Sequence[str]], deadline: Deadline
) -> str | None:
    same: dict[str, list[_Need]] = {}
    for need in needs:
        same.setdefault(json.dumps(need.exactly, sort_keys=True), []).append(need)
    for group in same.values():
        wanted = sum(need.devices * len(gang.kinds[need.kind].members) for need in group)
        everywhere = sorted({node for need in group for node in nodes[need.kind]})
        found = _copies(cluster, group[0].exactly, 1, everywhere, wanted, deadline)
        if found is not None and found < wanted:
            where = f"class {group[0].exactly.get('deviceClassName')}"
            return f"the pods need {wanted} devices of {where}, and {found} are available to them"
    return None


def _needs(gang: Gang, plugins: GangPlugins) -> Iterator[_Need]:
    """Yield the requests of which each member needs devices that no other member has."""
    users = Counter(identity_of(claim) for kind in gang.kinds for member in kind.members for claim in member.claims)
    for number, kind in enumerate(gang.kinds):
        claims = kind.members[0].claims if kind.members else []
        # How many members need devices for the last claim depends on their nodes.
        for claim in claims[:-1] if plugins.nodes(number) else claims:
            if allocation_of(claim) or users[identity_of(claim)] > 1:
                continue
            for request in requests_of(claim):
                exactly = request.get("exactly")
                if not exactly or exactly.get("adminAccess") or exactly.get("allocationMode") == "All":
                    continue
                selecting = {key: exactly[key] for key in _SELECTING if exactly.get(key)}
                yield _Need(number, str(request.get("name")), selecting, exactly.get("count") or 1)


def _copies(
    cluster: Cluster, exactly: Object, count: int, nodes: Sequence[str], needed: int, deadline: Deadline
) -> int | None:
    """Return how many times the nodes have `count` of these devices; None if it is not known exactly, or enough."""
    seconds = deadline.remaining()
    if not seconds:
        return None
    request = {"name": "devices", "exactly": {**exactly, "allocationMode": "ExactCount", "count": count}}
    claim = {"metadata": {"name": "devices"}, "spec": {"devices": {"requests": [request]}}}
    found = cluster.capacity([claim], nodes=nodes, limit=needed, deadline=seconds)
    is_shared = any(entry.has_network_devices for entry in found.nodes) and count > 1
    return None if found.total_is_partial or is_shared else found.total
