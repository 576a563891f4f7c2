"""Circles in a graph of names."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

Graph = Mapping[str, AbstractSet[str]]


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that all reach each other, the largest group first; a single node is not a circle."""
    reached = {node: _reach(graph, node) for node in graph}
    groups = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in graph}
    return sorted((sorted(group) for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def _reach(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph.get(todo.pop(), frozenset()) - found
        found |= new
        todo += new
    return found
