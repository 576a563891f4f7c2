"""The claims that are allocated in a cluster, by device, for `dra-agent claims --all-nodes` and `kubectl dra`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dra_agent.api_object import Object, identity_of
from dra_agent.cli.claims import Item, nothing_held, print_holders

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient


def print_cluster(args: argparse.Namespace, *, namespace: str | None, node: str | None = None) -> int:
    """Print the claims that are allocated in a cluster; None is every namespace, and every node."""
    from dra_agent.cli.connection import call_cluster
    from dra_agent.cli.output import print_notes
    from dra_agent.cli.table import Rows
    from dra_agent.kube_client import RESOURCE_CLAIMS

    async def listed(api: ApiClient) -> list[Object]:
        found = await api.list(RESOURCE_CLAIMS, namespace=namespace)
        print_notes(found.notes)
        return found.items

    def fetch() -> list[Item]:
        return sorted(
            (
                row
                for claim in call_cluster(args, listed)
                for row in allocated_devices(claim)
                if node in (None, row["node"])
            ),
            key=lambda row: (row["node"] or "", row["pool"], row["device"], row["namespace"], row["claim"]),
        )

    columns = ["node", "device", "driver", "claim", "request", "used by", "age", "ready"]
    table = Rows(
        columns,
        optional=("driver", "request", "age"),
        prose=("used by", "ready"),
        named=lambda row: str(row[3]),
        empty=nothing_held(namespace),
    )
    return print_holders(args, fetch, table, _cluster_cells)


def _cluster_cells(row: Item) -> list[object]:
    from dra_agent.cli.age import age

    return [
        row["node"],
        row["device"],
        row["driver"],
        f"{row['namespace']}/{row['claim']}",
        row["request"],
        ", ".join(row["used_by"]) or "none",
        age(row["created"]),
        {True: "yes", False: f"no: {row['reason']}"}.get(row["ready"]),
    ]


def allocated_devices(claim: Object) -> list[Item]:
    """Return the devices that are allocated to a claim, each with its node, pods and readiness."""
    from dra_agent.explain.object_state import claim_state

    namespace, name = identity_of(claim)
    found = claim_state(claim)
    return [
        {
            "node": found["node"],
            "device": device["device"],
            "pool": device["pool"],
            "driver": device["driver"],
            "share_id": device["share_id"],
            "namespace": namespace,
            "claim": name,
            "uid": claim["metadata"].get("uid"),
            "created": claim["metadata"].get("creationTimestamp"),
            "request": device["request"],
            "used_by": found["reserved_for"],
            "ready": device["ready"],
            "reason": device["reason"],
        }
        for device in found["devices"]
    ]
