"""Node selectors of slices and devices, evaluated against one Node as the scheduler does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class InvalidSelectorError(Exception):
    """The selector is not one that an API server accepts, so its meaning is unknown."""


def selects(selector: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Return whether a v1 NodeSelector selects a v1 Node, both as JSON values.

    A selector that cannot be evaluated selects it: the devices behind it may be those of the node.
    """
    metadata = node.get("metadata")
    if not isinstance(metadata, Mapping):
        return True
    labels = metadata.get("labels")
    fields = {"metadata.name": metadata.get("name")}
    try:
        return any(
            _matches(term, labels if isinstance(labels, Mapping) else {}, fields)
            for term in _list(selector, "nodeSelectorTerms")
        )
    except InvalidSelectorError:
        return True


def _matches(term: Any, labels: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    of_labels, of_fields = _list(term, "matchExpressions"), _list(term, "matchFields")
    # An empty term selects no node.
    return bool(of_labels or of_fields) and (
        all(_holds(requirement, labels) for requirement in of_labels)
        and all(_holds(requirement, fields) for requirement in of_fields)
    )


def _holds(requirement: Any, values: Mapping[str, Any]) -> bool:
    expected = _list(requirement, "values")
    key, operator = requirement.get("key"), requirement.get("operator")
    if not isinstance(key, str):
        raise InvalidSelectorError
    value = values.get(key)
    match operator:
        case "In":
            return value is not None and value in expected
        case "NotIn":
            return value is None or value not in expected
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compares(operator, value, expected)
    raise InvalidSelectorError


def _compares(operator: str, value: Any, expected: list[Any]) -> bool:
    try:
        (limit,) = map(int, expected)
    except (TypeError, ValueError) as error:
        raise InvalidSelectorError from error
    try:
        number = int(value)
    except (TypeError, ValueError):
        return False
    return number > limit if operator == "Gt" else number < limit


def _list(parent: Any, name: str) -> list[Any]:
    found = parent.get(name) if isinstance(parent, Mapping) else parent
    if found is None and isinstance(parent, Mapping):
        return []
    if not isinstance(found, list):
        raise InvalidSelectorError
    return found
