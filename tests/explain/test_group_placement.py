"""Random trees of groups: `explain` decides as a short model of kube-scheduler that only counts devices."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from dra_cluster.explain.composite_gang import gang_of_composite
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.snapshot import Snapshot
from explain.test_composite_group import composite, group, labeled, members
from explain.test_gang import CLASS, TEMPLATES, slices

Json = dict[str, Any]
CASES = 60
LABELS = ("zone", "rack")


@dataclass
class Node:
    """A node of the model."""

    labels: dict[str, str]
    free: int
    members: int = 0


@dataclass
class Part:
    """A group of the model: with parts, or with pods that need one device each."""

    name: str
    minimum: int
    topology: str
    pods: int = 0
    parts: list[Part] = field(default_factory=list)


Nodes = dict[str, Node]
Use = dict[str, int]
"""Pods by node."""


def place(part: Part, nodes: Nodes, allowed: list[str]) -> Use | None:
    """Place a group on the nodes that are allowed, and keep its pods there; None if it does not fit."""
    best: Use | None = None
    for names in choices(part, nodes, allowed):
        use = place_in(part, nodes, names)
        if use is None:
            continue
        change(nodes, use, -1)
        if best is None or sum(use.values()) > sum(best.values()):
            best = use
    if best is not None:
        change(nodes, best, 1)
    return best


def choices(part: Part, nodes: Nodes, allowed: list[str]) -> list[list[str]]:
    if not part.topology:
        return [allowed]
    values = sorted({nodes[name].labels[part.topology] for name in allowed})
    return [[name for name in allowed if nodes[name].labels[part.topology] == value] for value in values]


def place_in(part: Part, nodes: Nodes, names: list[str]) -> Use | None:
    use: Use = {}
    reached = 0
    if part.parts:
        for number, below in enumerate(part.parts):
            if reached + len(part.parts) - number < part.minimum:
                break
            found = place(below, nodes, names)
            reached += found is not None
            for name, count in (found or {}).items():
                use[name] = use.get(name, 0) + count
    for _ in range(part.pods if part.pods >= part.minimum else 0):
        free = [name for name in names if nodes[name].free]
        if not free:
            break
        chosen = min(free, key=lambda name: (nodes[name].members, name))
        change(nodes, {chosen: 1}, 1)
        use[chosen] = use.get(chosen, 0) + 1
        reached += 1
    if reached >= part.minimum:
        return use
    change(nodes, use, -1)
    return None


def change(nodes: Nodes, use: Use, sign: int) -> None:
    for name, count in use.items():
        nodes[name].free -= sign * count
        nodes[name].members += sign * count


def random_part(rng: random.Random, name: str, levels: int) -> Part:
    topology = rng.choice(("", "", *LABELS))
    number = rng.randint(1, 3)
    minimum = rng.randint(1, number)
    if levels == 1:
        return Part(name, minimum, topology, pods=number)
    below = [random_part(rng, f"{name}{letter}", rng.randint(1, levels - 1)) for letter in "abc"[:number]]
    return Part(name, minimum, topology, parts=below)


def objects(part: Part, parent: str = "") -> list[Json]:
    if not part.parts:
        return [group(part.name, part.minimum, parent, part.topology), *members(part.name, part.pods)]
    below = [one for child in part.parts for one in objects(child, part.name)]
    return [composite(part.name, part.minimum, parent, part.topology), *below]


@pytest.mark.parametrize("seed", range(CASES))
def test_a_random_tree_is_placed_as_by_the_model(seed: int) -> None:
    rng = random.Random(seed)
    nodes = {
        f"n{number}": Node({"zone": rng.choice("xy"), "rack": rng.choice("abc")}, rng.randint(0, 3))
        for number in range(rng.randint(2, 6))
    }
    root = random_part(rng, "g", rng.randint(2, 4))
    while not root.parts:
        root = random_part(rng, "g", 4)
    listed = objects(root)
    of_kind: dict[str, list[Json]] = {"CompositePodGroup": [], "PodGroup": [], "Pod": []}
    for one in listed:
        of_kind[one["kind"]].append(one)
    snapshot = Snapshot(
        "default",
        [slices(name, "A" * one.free) for name, one in nodes.items() if one.free],
        [CLASS],
        [],
        TEMPLATES,
        of_kind["Pod"],
        None,
        of_kind["PodGroup"],
        of_kind["CompositePodGroup"],
        nodes=[labeled(name, one.labels["zone"], one.labels["rack"]) for name, one in nodes.items()],
    )
    gang = gang_of_composite(snapshot, "case", "CompositePodGroup", listed[0])
    answer = explain_gang(snapshot, gang, deadline=600)
    use = place(root, nodes, sorted(nodes))
    assert answer["fits"] == (use is not None), answer["summary"]
    if use is not None:
        placed: Use = {}
        for one in answer["placements"]:
            placed[one["node"]] = placed.get(one["node"], 0) + 1
        assert placed == {name: count for name, count in use.items() if count}
    elif answer["search"] is not None and answer["search"]["found"]:
        assert not answer["search"]["impossible"]
