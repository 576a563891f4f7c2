"""State of a claim, or of a pod that uses claims: allocated, reserved, deleted, waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.api_object import Object, allocation_of, consumers_of, device_of, full_name, results_of

_CONSUMERS = {"pods": "pod", "podgroups": "pod group"}


def claim_state(claim: Object) -> dict[str, Any]:
    """Describe a claim as the API server has it."""
    metadata = claim.get("metadata") or {}
    allocation = allocation_of(claim)
    reserved = [_consumer(entry) for entry in consumers_of(claim)]
    state: dict[str, Any] = {
        "claim": full_name(claim),
        "state": "pending",
        "summary": "is not allocated",
        "node": node_of(claim),
        "devices": _devices(claim),
        "reserved_for": reserved,
    }
    if allocation:
        where = f" on node {state['node']}" if state["node"] else ""
        names = ", ".join(device["device"] for device in state["devices"]) or "no device"
        state["state"] = "allocated"
        state["summary"] = f"is allocated {names}{where}" + (
            f", reserved for {', '.join(reserved)}" if reserved else ", and not reserved"
        )
        not_ready = [device for device in state["devices"] if device["ready"] is False]
        if not_ready:
            state["summary"] += f"; {not_ready[0]['device']} is not ready: {not_ready[0]['reason']}"
        if binding := binding_of(state["devices"]):
            state["summary"] += f"; {binding}"
    if since := metadata.get("deletionTimestamp"):
        state["state"] = "deleting"
        waits = (
            f"until {', '.join(reserved)} ended" if reserved else f"for {', '.join(metadata.get('finalizers') or ())}"
        )
        state["summary"] = f"is being deleted since {since}, and waits {waits}"
    return state


def pod_state(pod: Object) -> dict[str, Any]:
    """Describe why a pod does not run, from its own status."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    metadata = pod.get("metadata") or {}
    conditions: list[Object] = status.get("conditions") or []
    scheduled: Object = next((one for one in conditions if one.get("type") == "PodScheduled"), {})
    waiting = [
        f"{state['reason']}: {state['message']}" if state.get("message") else state["reason"]
        for container in status.get("containerStatuses") or ()
        if (state := (container.get("state") or {}).get("waiting") or {}).get("reason")
    ]
    described: dict[str, Any] = {
        "pod": full_name(pod),
        "phase": status.get("phase"),
        "node": spec.get("nodeName"),
        "scheduler": None,
        "waiting": waiting,
        "deleting": metadata.get("deletionTimestamp"),
    }
    if gates := [gate.get("name", "") for gate in spec.get("schedulingGates") or ()]:
        described["scheduler"] = f"waits for its scheduling gates to go: {', '.join(gates)}"
    elif scheduled.get("status") == "False":
        described["scheduler"] = scheduled.get("message") or scheduled.get("reason")
    elif not spec.get("nodeName"):
        described["scheduler"] = f"{spec.get('schedulerName') or 'default-scheduler'} has not evaluated it yet"
    return described


def node_of(claim: Object) -> str | None:
    """Name the node that a claim's devices are local to; None where they are not allocated, or not local to one."""
    for term in (allocated_node_selector(claim) or {}).get("nodeSelectorTerms") or ():
        for one in term.get("matchFields") or ():
            if one.get("key") == "metadata.name" and one.get("operator") == "In" and len(one.get("values") or ()) == 1:
                return str(one["values"][0])
    return None


def allocated_node_selector(claim: Object) -> Object | None:
    """Return the node selector to which an allocation binds its pods."""
    allocation = allocation_of(claim) or {}
    selector: Object | None = allocation.get("nodeSelector")
    return selector


def binding_of(devices: Sequence[dict[str, Any]]) -> str | None:
    """Return the condition or failure of a device of a claim that prevents the binding of its pod (KEP-5007)."""
    for device in devices:
        if device["binding_failure"] is not None:
            return f"{device['device']} could not be set up, and is chosen again: {device['binding_failure']}"
    waiting = [(name, device["device"]) for device in devices for name in device["waits_for"]]
    if not waiting:
        return None
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"waits for binding condition {waiting[0][0]} on device {waiting[0][1]}{more}"


def _consumer(entry: Object) -> str:
    resource = entry.get("resource", "")
    return f"{_CONSUMERS.get(resource, resource)} {entry.get('name')}"


def _devices(claim: Object) -> list[dict[str, Any]]:
    by_device = {
        (*device_of(entry), entry.get("shareID")): entry for entry in (claim.get("status") or {}).get("devices") or ()
    }
    found = []
    for result in results_of(claim):
        key = (*device_of(result), result.get("shareID"))
        conditions = (by_device.get(key) or {}).get("conditions") or ()
        ready = next((one for one in conditions if one.get("type") == "Ready"), None)
        true = {one.get("type"): one for one in conditions if one.get("status") == "True"}
        failed = next((true[name] for name in result.get("bindingFailureConditions") or () if name in true), None)
        found.append(
            {
                "request": result.get("request"),
                "driver": result.get("driver"),
                "pool": result.get("pool"),
                "device": result.get("device"),
                "share_id": result.get("shareID"),
                "ready": None if ready is None else ready.get("status") == "True",
                "reason": None if ready is None else ready.get("message") or ready.get("reason"),
                "waits_for": [name for name in result.get("bindingConditions") or () if name not in true],
                "binding_failure": None if failed is None else failed.get("message") or failed.get("reason"),
            }
        )
    return found
