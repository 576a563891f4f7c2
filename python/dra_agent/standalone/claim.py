"""A claim in standalone mode: its phase, the reason, and its CDI device ids.

The objects themselves are the API's own; nothing here is stored.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

Phase = Literal["Pending", "Allocated", "Prepared", "Unhealthy", "Failed", "Deleting"]
"""Pending: waits for devices. Allocated: has devices, not prepared yet. Failed: can never be prepared as it is."""

PREPARED = "dra-agent.internal/prepared"
"""Annotation: when the claim was prepared first since it has its devices."""
FAILED = "dra-agent.internal/failed"
"""Annotation: why a claim can never be prepared as it is. It holds no device until it is applied again."""
RUN = "dra-agent.internal/run"
"""Annotation of a claim of `dra-agent claim run`: the token of the run."""
RUN_PROCESSES = "dra-agent.internal/run-processes"
"""Annotation of such a claim: the processes that release it, with boot, PID namespace and start times."""
UNDER_WAY = "is being prepared"
"""The message of a claim that has devices and is not ready yet."""


class PreparedDevice(msgspec.Struct, frozen=True):
    """One device of a prepared claim."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


class ClaimView(msgspec.Struct, frozen=True):
    """A claim as the command line shows it."""

    namespace: str
    name: str
    uid: str
    phase: Phase
    message: str
    """Why it is not prepared, or why a device of it cannot be used; empty where neither is so."""
    created: str
    """RFC 3339, UTC."""
    prepared: str
    """Since when it is prepared without a break, as `created`; empty while it is not."""
    devices: tuple[PreparedDevice, ...]
    cdi_device_ids: tuple[str, ...]
    """Every id of every device, in order: for `podman run --device ID` and `ctr run --device ID`."""
    fits_empty_host: bool
    """False: even with nothing else claimed this host could not satisfy it."""
    claim: dict[str, Any]
    """The ResourceClaim itself, with status.allocation once it is allocated; empty if it was not asked for."""


class ClaimPage(msgspec.Struct, frozen=True):
    """Some claims, oldest first."""

    claims: list[ClaimView]
    next: int | None
    """The place in the queue after which the next page begins; None after the last one."""


class ApplyResult(msgspec.Struct, frozen=True):
    """The result for one applied object."""

    kind: str
    name: str
    action: Literal["created", "configured", "unchanged"]
    namespace: str = ""
    claim: ClaimView | None = None


RESTORED = "dra-agent.internal/restored"
"""Annotation: the claim was rebuilt from the ledger, so its selectors and constraints are not known any more."""


def claim_of(entry: dict[str, Any], driver: str) -> dict[str, Any]:
    """Write the ResourceClaim of a ledger entry: its identity, one request for each name, and its allocation."""
    counts: dict[str, int] = {}
    results = []
    for device in entry["devices"]:
        request = device["request"]
        if not request:  # the parent device of a partition: not allocated itself
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
            "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),  # noqa: TID251 - creationTimestamp of an object
            "annotations": {RESTORED: "true"},
        },
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
