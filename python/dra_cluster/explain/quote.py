"""What another controller recorded about an object, quoted from its status. Nothing of it is computed again."""

from __future__ import annotations

from typing import Any

from dra_agent.api_object import Object

KUBE_SCHEDULER = "kube-scheduler"
COMPOSITE_GATE = "CompositePodGroup"
TOPOLOGY_GATE = "TopologyAwareWorkloadScheduling"
"""Both gates are alpha in Kubernetes 1.37 (pkg/features/kube_features.go)."""


def quote(kind: str, value: Object, writer: str, *, not_evaluated: str) -> Object:
    """Return the conditions and admission checks of an object as JSON; `missing` if its writer has not written any.

    Arguments:
        kind: Its kind.
        value: The object.
        writer: The controller that writes its status.
        not_evaluated: What that controller decides.
    """
    status = value.get("status") or {}
    conditions = [
        {**_texts(one, "type", "status", "reason", "message"), "last_transition_time": one.get("lastTransitionTime")}
        for one in status.get("conditions") or ()
    ]
    checks = [
        {**_texts(one, "name", "state", "message"), "last_transition_time": one.get("lastTransitionTime")}
        for one in status.get("admissionChecks") or ()
    ]
    missing = None if conditions else f"{writer} has not written a condition yet"
    return _quote(kind, value["metadata"]["name"], not_evaluated, missing, conditions, checks)


def no_quote(kind: str, name: str | None, missing: str, *, not_evaluated: str) -> Object:
    """Return the quote of an object that is not there or could not be read; `missing` is the reason."""
    return _quote(kind, name, not_evaluated, missing, [], [])


def is_true(quoted: Object, condition: str) -> bool:
    """Return whether a condition of a quote is true."""
    return any(one["type"] == condition and one["status"] == "True" for one in quoted["conditions"])


def _quote(
    kind: str,
    name: str | None,
    not_evaluated: str,
    missing: str | None,
    conditions: list[Object],
    checks: list[Object],
) -> Object:
    return {
        "kind": kind,
        "name": name,
        "conditions": conditions,
        "admission_checks": checks,
        "missing": missing,
        "not_evaluated": not_evaluated,
    }


def _texts(value: Object, *fields: str) -> dict[str, Any]:
    return {field: value.get(field) or "" for field in fields}
