"""Why a pod may not be on a node for reasons that are not about devices: its own constraints, and the node's taints.

Only fields of the pod and the Node object are evaluated, not the free resources of the node. Semantics:
k8s.io/component-helpers/scheduling/corev1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_INT_64 = range(-(1 << 63), 1 << 63)
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def scheduling_blockers(pod: Object, node: Object) -> list[str]:
    """Return why a pod cannot run on a node; empty if it can."""
    spec = pod.get("spec") or {}
    name = (node.get("metadata") or {}).get("name", "")
    labels = (node.get("metadata") or {}).get("labels") or {}
    found = []
    if spec.get("nodeName") and spec["nodeName"] != name:
        found.append(f"the pod is on node {spec['nodeName']}")
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            has = f"has {key}={labels[key]}" if key in labels else f"has no label {key}"
            found.append(f"the pod's nodeSelector requires {key}={value}, the node {has}")
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is not None and not matches(required, name, labels):
        found.append("the pod's node affinity does not match the node")
    return found + _untolerated(spec.get("tolerations") or (), node.get("spec") or {})


def matches(selector: Object, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a NodeSelector matches a node: any of its terms, with all expressions of that term."""
    return any(_term(term, name, labels) for term in selector.get("nodeSelectorTerms") or ())


def matches_labels(expressions: Iterable[Object], labels: Mapping[str, str]) -> bool:
    """Return whether labels match all expressions of a label selector."""
    return all(_matches(one, labels) for one in expressions)


def _untolerated(tolerations: Sequence[Object], spec: Object) -> list[str]:
    """Return what these tolerations do not tolerate of a node with this spec; a cordon is a taint, too."""
    found = []
    if spec.get("unschedulable") and not any(tolerates(one, _UNSCHEDULABLE) for one in tolerations):
        found.append("the node is cordoned")
    for taint in spec.get("taints") or ():
        if taint.get("effect") not in {"NoSchedule", "NoExecute"}:
            continue
        if spec.get("unschedulable") and taint.get("key") == _UNSCHEDULABLE["key"]:
            continue  # reported above
        if not any(tolerates(one, taint) for one in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            found.append(f"the pod does not tolerate the node's taint {taint.get('key')}{value}:{taint['effect']}")
    return found


def tolerates(toleration: Object, taint: Object) -> bool:
    """Return whether a pod's toleration matches a node's taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    tolerated, actual = toleration.get("value") or "", taint.get("value") or ""
    if operator in {"Gt", "Lt"}:
        return _compared(actual, operator, [tolerated])
    return bool(toleration.get("key")) and tolerated == actual


def _term(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches nothing
    return all(_matches(one, labels) for one in expressions) and all(
        _matches(one, {"metadata.name": name}) for one in fields
    )


def _matches(expression: Object, values: Mapping[str, str]) -> bool:
    key, operator, operands = expression.get("key", ""), expression.get("operator"), expression.get("values") or []
    value = values.get(key)
    match operator:
        case "In":
            return value in operands
        case "NotIn":
            return value not in operands
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compared(value, operator, operands)
        case _:
            return False


def _compared(value: str, operator: str, operands: list[str]) -> bool:
    """Compare integers as strconv.ParseInt reads them, in decimal form and of 64 bits; False if one is another text."""
    numbers = [int(one) for one in (value, *operands) if _INTEGER.fullmatch(str(one))]
    if len(operands) != 1 or len(numbers) != 2 or not all(one in _INT_64 for one in numbers):
        return False
    actual, limit = numbers
    return actual > limit if operator == "Gt" else actual < limit
