"""DeviceTaintRules: the taints that they add to devices (KEP-5055), as the scheduler of the API server's version does.

A rule selects devices by driver, pool and name. Until Kubernetes 1.34, v1alpha3 also had a class and CEL expressions;
servers since 1.35 do not have them (staging/src/k8s.io/api/resource/v1alpha3/types.go). They are evaluated as in the
tracker of 1.34: all criteria must be met, a class that does not exist matches no device, and neither does an expression
that has no value for a device (dynamic-resource-allocation/resourceslice/tracker/tracker.go, applyPatches).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dra_agent import _native
from dra_agent.api_object import Object
from dra_agent.kube_client import ApiClient, ForbiddenError, InvalidObjectError, Kind, NotFoundError

DEVICE_TAINT_RULES = tuple(
    Kind("resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", namespaced=False)
    # v1 exists since Kubernetes 1.37, v1beta2 since 1.36; the older ones are off by default.
    for version in ("v1", "v1beta2", "v1alpha3")
)


class _Cel(msgspec.Struct, frozen=True):
    expression: str


class _Expression(msgspec.Struct, frozen=True):
    cel: _Cel | None = None


class _Selector(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    device_class_name: str | None = None
    selectors: tuple[_Expression, ...] = ()


class _ClassSpec(msgspec.Struct, frozen=True):
    selectors: tuple[_Expression, ...] = ()


class _Rule(msgspec.Struct, frozen=True):
    """A rule that can be evaluated."""

    selector: _Selector
    expressions: Sequence[_native.CelExpression]
    taint: Mapping[str, Any]

    def has_match(self, driver: str, pool: str, device: Object) -> bool:
        names = (self.selector.driver, driver), (self.selector.pool, pool), (self.selector.device, device.get("name"))
        if any(name is not None and name != value for name, value in names):
            return False
        if not self.expressions:
            return True
        content = msgspec.json.encode(device)
        try:
            return all(expression.matches(driver, content) for expression in self.expressions)
        except ValueError:
            return False  # it has no value for this device


async def taint_rules(api: ApiClient) -> list[Object]:
    """Return the DeviceTaintRules in the newest version that the server has.

    Returns [] where a user may not read them, which is normal; raises RetryableError if the server does not respond.
    """
    for kind in DEVICE_TAINT_RULES:
        try:
            return (await api.list(kind)).items
        except NotFoundError:
            continue
        except (ForbiddenError, InvalidObjectError):
            break
    return []


def tainted(
    slices: list[Object], rules: Sequence[Object], classes: Sequence[Object] | None, notes: list[str]
) -> list[Object]:
    """Return the slices with the taints that the rules add to their devices; add a note for rules that are left out.

    `classes` is None if they may not be read.
    """
    usable = [usable for rule in rules if (usable := _usable(rule, classes, notes)) is not None]
    return [_with_rules(entry, usable) for entry in slices] if usable else slices


def _usable(rule: Object, classes: Sequence[Object] | None, notes: list[str]) -> _Rule | None:
    """Return a rule that can match a device; None with a note if it cannot be evaluated."""
    name = f"DeviceTaintRule {(rule.get('metadata') or {}).get('name')}"
    spec = rule.get("spec") or {}
    taint, content = spec.get("taint"), spec.get("deviceSelector")
    if not isinstance(taint, dict) or not taint:
        return None
    if content is None:
        # The tracker of schedulers before 1.37.1 handled a missing selector as an empty one.
        notes.append(f"{name} has no deviceSelector, so it is for no device; before Kubernetes 1.37.1 it was for all")
        return None
    try:
        selector = msgspec.convert(content, _Selector)
        expressions = [_native.CelExpression.selector(text) for text in _expressions(selector, classes)]
    except LookupError:
        return None  # the class does not exist
    except _UnknownError as error:
        notes.append(f"{name} is not evaluated: {error}")
        return None
    except ValueError as error:
        notes.append(f"{name} is not evaluated: its deviceSelector is not understood: {error}")
        return None
    return _Rule(selector, expressions, taint)


class _UnknownError(Exception):
    """What a rule depends on cannot be read."""


def _expressions(selector: _Selector, classes: Sequence[Object] | None) -> list[str]:
    """Return the CEL expressions of a rule and of its class. LookupError if the class does not exist."""
    found: tuple[_Expression, ...] = ()
    if selector.device_class_name is not None:
        if classes is None:
            raise _UnknownError(f"DeviceClass {selector.device_class_name} cannot be read")
        specs = {(one.get("metadata") or {}).get("name"): one.get("spec") or {} for one in classes}
        found = msgspec.convert(specs[selector.device_class_name], _ClassSpec).selectors
    return [one.cel.expression for one in (*found, *selector.selectors) if one.cel is not None]


def _with_rules(entry: Object, rules: Sequence[_Rule]) -> Object:
    spec = entry.get("spec") or {}
    driver, pool = str(spec.get("driver")), str((spec.get("pool") or {}).get("name"))
    devices = []
    for device in spec.get("devices") or ():
        taints = [rule.taint for rule in rules if rule.has_match(driver, pool, device)]
        devices.append({**device, "taints": [*(device.get("taints") or ()), *taints]} if taints else device)
    return {**entry, "spec": {**spec, "devices": devices}} if devices else entry
