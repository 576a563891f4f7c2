"""What-if changes of a snapshot, each written as `ACTION=SUBJECT`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from dra_agent.api_object import Object, device_of, full_name, identity_of, results_of
from dra_agent.errors import UsageError
from dra_cluster.explain.claim_admission import quotas_without
from dra_cluster.explain.snapshot import Snapshot

MAX_ADDED_NODES = 10_000
"""Nodes that all changes of a query together can add."""
FORMS = (
    "cordon=NODE",
    "uncordon=NODE",
    "untaint=KEY[:NODE]",
    "delete-claim=NAMESPACE/NAME",
    "add=N:KIND",
    "replace=NODE:KIND",
)
HOSTNAME = "kubernetes.io/hostname"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class Change(NamedTuple):
    """One change."""

    text: str
    action: str
    subject: str
    """A node, a taint key, a claim, or the kind of the added or replaced nodes."""
    number: int = 0
    """How many nodes are added."""
    node: str | None = None
    """The node that loses a taint, or that is replaced; None for every node."""


NodeSource = Callable[[str, list[str]], tuple[list[Object], Object]]
"""Makes the slices of new nodes with these names, and the Node object that they have in common, from their kind."""


def parse_change(text: str) -> Change:
    """Read a change.

    Raises:
        UsageError: It has none of the forms.
    """
    action, _, value = text.partition("=")
    match action:
        case "cordon" | "uncordon" if value and "/" not in value:
            return Change(text, action, value)
        case "untaint" if value:
            key, _, node = value.partition(":")
            if key and (node or ":" not in value):
                return Change(text, action, key, node=node or None)
        case "delete-claim" if value.count("/") == 1 and all(value.split("/")):
            return Change(text, action, value)
        case "add":
            number, _, kind = value.partition(":")
            if kind and number.isascii() and number.isdigit() and 0 < int(number[:9]) <= MAX_ADDED_NODES:
                return Change(text, action, kind, number=int(number[:9]))
            if kind and number.isascii() and number.isdigit():
                raise UsageError(f"adds not 1 to {MAX_ADDED_NODES} nodes", where=f"--if {text}")
        case "replace":
            node, _, kind = value.partition(":")
            if node and kind:
                return Change(text, action, kind, node=node)
    raise UsageError("is not a change", where=f"--if {text}", hint=f"write one of {', '.join(FORMS)}")


def apply_changes(snapshot: Snapshot, changes: Iterable[Change], source: NodeSource) -> Snapshot:
    """Return a snapshot with the changes, in their order; the given one is unchanged.

    Raises:
        UsageError: A node, taint or claim of a change does not exist, or an added node does; or too many are added.
    """
    changes = list(changes)
    if (number := sum(change.number for change in changes)) > MAX_ADDED_NODES:
        raise UsageError(f"adds {number} nodes together, at most {MAX_ADDED_NODES} can be added", where="--if")
    added = 0
    for change in changes:
        match change.action:
            case "cordon" | "uncordon":
                snapshot = _set_unschedulable(snapshot, change)
            case "untaint":
                snapshot = _without_taint(snapshot, change)
            case "delete-claim":
                snapshot = _without_claim(snapshot, change)
            case "replace":
                snapshot = _with_other_devices(snapshot, change, source)
            case _:
                names = [f"added-{number}" for number in range(added + 1, added + change.number + 1)]
                added += change.number
                snapshot = _with_nodes(snapshot, change, names, source)
    return snapshot


def _set_unschedulable(snapshot: Snapshot, change: Change) -> Snapshot:
    nodes = _nodes(snapshot, change)
    is_cordoned = change.action == "cordon"
    if change.subject not in {node["metadata"]["name"] for node in nodes}:
        raise UsageError(f"there is no node {change.subject}", where=f"--if {change.text}")

    def changed(node: Object) -> Object:
        if node["metadata"]["name"] != change.subject:
            return node
        spec = dict(node.get("spec") or {})
        spec["unschedulable"] = is_cordoned
        if not is_cordoned:
            spec["taints"] = [one for one in spec.get("taints") or () if one.get("key") != _UNSCHEDULABLE]
        return {**node, "spec": spec}

    return replace(snapshot, nodes=[changed(node) for node in nodes])


def _nodes(snapshot: Snapshot, change: Change) -> list[Object]:
    if snapshot.nodes is None:
        raise UsageError(
            "there are no Node objects", where=f"--if {change.text}", hint="a dump needs `kubectl get nodes -o yaml`"
        )
    return snapshot.nodes


def _without_taint(snapshot: Snapshot, change: Change) -> Snapshot:
    removed = 0

    def kept(holder: Object) -> Object:
        nonlocal removed
        taints = holder.get("taints") or ()
        left = [taint for taint in taints if taint.get("key") != change.subject]
        removed += len(taints) - len(left)
        return holder if len(left) == len(taints) else {**holder, "taints": left}

    def is_meant(name: str | None) -> bool:
        return change.node in (None, name)

    nodes = snapshot.nodes and [
        {**node, "spec": kept(node.get("spec") or {})} if is_meant(node["metadata"]["name"]) else node
        for node in snapshot.nodes
    ]
    slices = snapshot.slices and [
        {**entry, "spec": {**entry["spec"], "devices": [kept(one) for one in entry["spec"]["devices"]]}}
        if (entry.get("spec") or {}).get("devices") and is_meant(entry["spec"].get("nodeName"))
        else entry
        for entry in snapshot.slices
    ]
    if not removed:
        where = f"node {change.node} and its devices have" if change.node else "no node and no device has"
        no = " no" if change.node else " the"
        raise UsageError(f"{where}{no} taint {change.subject}", where=f"--if {change.text}")
    return replace(snapshot, nodes=nodes, slices=slices)


def _without_claim(snapshot: Snapshot, change: Change) -> Snapshot:
    deleted = next((claim for claim in snapshot.claims if full_name(claim) == change.subject), None)
    if deleted is None:
        raise UsageError(f"there is no claim {change.subject}", where=f"--if {change.text}")
    is_local = identity_of(deleted)[0] == snapshot.namespace
    return replace(
        snapshot,
        claims=[claim for claim in snapshot.claims if full_name(claim) != change.subject],
        quotas=quotas_without(snapshot, deleted) if is_local else snapshot.quotas,
    )


def _with_nodes(snapshot: Snapshot, change: Change, names: list[str], source: NodeSource) -> Snapshot:
    existing = _names(snapshot)
    if taken := existing.intersection(names):
        raise UsageError(f"there is a node {min(taken)} already", where=f"--if {change.text}")
    slices, of_kind = source(change.subject, names)
    labels = (of_kind.get("metadata") or {}).get("labels") or {}
    nodes = [{**of_kind, "metadata": {"name": name, "labels": {**labels, HOSTNAME: name}}} for name in names]
    return replace(
        snapshot,
        slices=[*(snapshot.slices or ()), *slices],
        nodes=None if snapshot.nodes is None else [*snapshot.nodes, *nodes],
    )


def _with_other_devices(snapshot: Snapshot, change: Change, source: NodeSource) -> Snapshot:
    """Return a snapshot in which a node has the slices of a kind, in place of those of the same drivers."""
    name = str(change.node)
    if name not in _names(snapshot):
        raise UsageError(f"there is no node {name}", where=f"--if {change.text}")
    slices, _ = source(change.subject, [name])
    drivers = {_spec(entry).get("driver") for entry in slices}

    def stays(entry: Object) -> bool:
        return _spec(entry).get("nodeName") != name or _spec(entry).get("driver") not in drivers

    before, kept = _devices(entry for entry in snapshot.slices or () if not stays(entry)), _devices(slices)
    lost = [
        f"claim {full_name(claim)} holds {result.get('device')}, which node {name} would not have"
        for claim in snapshot.claims
        for result in results_of(claim)
        if (device := device_of(result)) in before and device not in kept
    ]
    return replace(
        snapshot,
        slices=[*filter(stays, snapshot.slices or ()), *slices],
        notes=[*snapshot.notes, *lost],
    )


def _names(snapshot: Snapshot) -> set[str]:
    """Return the nodes: those of Node objects, and those that slices name."""
    named = {name for entry in snapshot.slices or () if (name := _spec(entry).get("nodeName"))}
    return named | {node["metadata"]["name"] for node in snapshot.nodes or ()}


def _devices(slices: Iterable[Object]) -> set[tuple[object, ...]]:
    return {
        (_spec(entry).get("driver"), (_spec(entry).get("pool") or {}).get("name"), device.get("name"))
        for entry in slices
        for device in _spec(entry).get("devices") or ()
    }


def _spec(entry: Object) -> Object:
    return entry.get("spec") or {}
