"""The view of a cluster: its nodes by devices, claims that wait, and nodes that are being reclaimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dra_cluster.page.frame import count, currency, names, section
from dra_cluster.page.html import Content, Html, element, table
from dra_cluster.page.last_known import LastRead
from dra_cluster.page.views import ClusterView, NodeView

NODES_PER_PAGE = 50
MAX_PAGE_LINKS = 20
"""Pages that are linked by number, besides the present one and the last."""
MAX_RECLAIMS = 50
"""Nodes being reclaimed that are listed."""
MAX_NAMES = 8
"""Claims that are named in one cell."""

TITLE = "Cluster"


def content(known: LastRead[ClusterView], page: int) -> list[Content]:
    """Return the view with one page of the nodes; pages count from 1, and one that does not exist is the nearest."""
    view = known.value
    status = currency(cast("LastRead[object]", known))
    if view is None:
        return [status]
    reclaimed = [node for node in view.nodes if node.phase != "none"]
    return [
        element("p", _summary(view, reclaimed), id="summary", data_live=""),
        status,
        element("div", [element("p", f"⚠ {note}", class_="problem") for note in view.notes], id="notes", data_live=""),
        _reclaims(reclaimed),
        _pending(view),
        _nodes(view.nodes, page),
    ]


def _summary(view: ClusterView, reclaimed: Sequence[NodeView]) -> str:
    devices, held, tainted = (
        sum(getattr(node, field) for node in view.nodes) for field in ("devices", "held", "tainted")
    )
    return (
        f"{count(len(view.nodes), 'node')}, {count(devices, 'device')}: {held:,} held, {tainted:,} tainted. "
        f"{count(view.pending_total, 'claim')} pending. {count(len(reclaimed), 'node')} being reclaimed."
    )


def _reclaims(nodes: Sequence[NodeView]) -> Html:
    if not nodes:
        return section("reclaims", "Reclaim", element("p", "No node is being reclaimed."))
    rows = ((node.name, node.phase, names(node.claims, MAX_NAMES), node.message) for node in nodes[:MAX_RECLAIMS])
    left_out = len(nodes) - MAX_RECLAIMS
    return section(
        "reclaims",
        "Reclaim",
        table("reclaim-table", count(len(nodes), "node"), ("Node", "Phase", "Claims", "Why"), rows),
        element("p", f"{count(left_out, 'node')} more: `kubectl dra reclaim status` lists all.")
        if left_out > 0
        else None,
        class_="banner",
    )


def _pending(view: ClusterView) -> Html:
    if not view.pending_total:
        return section("pending", "Pending claims", element("p", "No claim is pending."))
    rows = (
        (one.claim, element("time", one.created, datetime=one.created) if one.created else None, one.reason)
        for one in view.pending
    )
    left_out = view.pending_total - len(view.pending)
    return section(
        "pending",
        "Pending claims",
        table("pending-table", count(view.pending_total, "claim"), ("Claim", "Created", "Reason"), rows),
        element("p", f"{count(left_out, 'newer claim')} not listed.") if left_out else None,
    )


def _nodes(nodes: Sequence[NodeView], page: int) -> Html:
    pages = max(1, -(-len(nodes) // NODES_PER_PAGE))
    page = min(max(page, 1), pages)
    first = (page - 1) * NODES_PER_PAGE
    shown = nodes[first : first + NODES_PER_PAGE]
    rows = (
        (
            node.name,
            ", ".join(f"{number:,} {family}" for family, number in node.families) or "none",
            f"{node.held:,} of {node.devices:,}",
            f"⚠ {node.tainted:,}" if node.tainted else "0",
            "none" if node.phase == "none" else f"⚠ {node.phase}",
        )
        for node in shown
    )
    caption = f"Nodes {first + 1:,} to {first + len(shown):,} of {len(nodes):,}" if shown else "There are no nodes"
    columns = ("Node", "Devices", "Held", "Tainted", "Reclaim")
    return section("nodes", "Nodes", table("node-table", caption, columns, rows), _pages(page, pages))


def _pages(page: int, pages: int) -> Content:
    """Return links to the neighbors of a page, and to a few others, so that no page is far away."""
    if pages == 1:
        return None
    steps = [
        element("a", label, href=f"cluster?page={target}", rel=rel)
        for label, target, rel in (("Previous", page - 1, "prev"), ("Next", page + 1, "next"))
        if 1 <= target <= pages
    ]
    every = -(-pages // MAX_PAGE_LINKS)
    numbers = [
        element("a", f"{number:,}", href=f"cluster?page={number}", aria_current="page" if number == page else None)
        for number in sorted({page, *range(1, pages + 1, every), pages})
    ]
    return element(
        "nav",
        [[link, " "] for link in steps],
        f"Page {page} of {pages}: ",
        [[link, " "] for link in numbers],
        aria_label="Pages of nodes",
        class_="pages",
    )
