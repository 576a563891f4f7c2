"""Claims that the ledger knows and the store has lost: written anew from what they hold.

A store can be damaged; what containers use must not be given to others for that.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

RESTORED = "dra-agent.internal/restored"
"""Annotation: the claim was rebuilt from the ledger, so its selectors and constraints are not known any more."""


def claim_of(entry: dict[str, Any], driver: str) -> dict[str, Any]:
    """Write the ResourceClaim of a ledger entry: its identity, one request for each name, and its allocation."""
    counts: dict[str, int] = {}
    results = []
    for device in entry["devices"]:
        request = device["request"]
        if not request:  # the whole device of which the claim holds a part: nothing that was allocated
            continue
        counts[request.partition("/")[0]] = counts.get(request.partition("/")[0], 0) + 1
        result = {"request": request, "driver": driver, "pool": device["pool"], "device": device["device"]}
        if device.get("share_id"):
            result["shareID"] = device["share_id"]
        if device.get("admin_access"):
            result["adminAccess"] = True
        results.append(result)
    requests = [
        {"name": name, "exactly": {"deviceClassName": "restored", "allocationMode": "ExactCount", "count": count}}
        for name, count in counts.items()
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": entry["name"],
            "namespace": entry["namespace"],
            "uid": entry["uid"],
            "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "annotations": {RESTORED: "true"},
        },
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
