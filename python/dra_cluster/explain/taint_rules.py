"""DeviceTaintRules: the taints that they add to devices (KEP-5055), as the scheduler of the API server's version does.

A rule selects devices by driver, pool and name. Until Kubernetes 1.34, v1alpha3 also had a class and CEL expressions;
servers since 1.35 do not have them (staging/src/k8s.io/api/resource/v1alpha3/types.go). They are evaluated as in the
tracker of 1.34: all criteria must be met, a class that does not exist matches no device, and neither does an expression
that has no value for a device (dynamic-resource-allocation/resourceslice/tracker/tracker.go, applyPatches).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dra_agent import _native
from dra_agent.api_object import Object
from dra_agent.deadline import Deadline
from dra_agent.kube_client import ApiClient, ForbiddenError, InvalidObjectError, Kind, NotFoundError

DEVICE_TAINT_RULES = tuple(
    Kind("resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", namespaced=False)
    # v1 exists since Kubernetes 1.37, v1beta2 since 1.36; the older ones are off by default.
    for version in ("v1", "v1beta2", "v1alpha3")
)
EXPRESSIONS_TIMEOUT_S = 10.0
"""For the expressions of all rules on all devices; one evaluation can need seconds at the limit of its cost."""
MAX_NAMED_RULES = 3
"""Rules that are named in one note."""


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

    name: str
    selector: _Selector
    expressions: Sequence[_native.CelExpression]
    taint: Mapping[str, Any]


class _Evaluation:
    """The expressions of all rules, evaluated within one deadline."""

    def __init__(self, rules: Sequence[_Rule]) -> None:
        self._rules = rules
        self._deadline = Deadline.of(EXPRESSIONS_TIMEOUT_S)

    def slices(self, slices: Iterable[Object]) -> list[Object]:
        """Return the slices with the taints of the rules; raises _LateError at the deadline."""
        return [self._with_taints(entry) for entry in slices]

    def _with_taints(self, entry: Object) -> Object:
        spec = entry.get("spec") or {}
        driver, pool = str(spec.get("driver")), str((spec.get("pool") or {}).get("name"))
        rules = [
            rule
            for rule in self._rules
            if rule.selector.driver in (None, driver) and rule.selector.pool in (None, pool)
        ]
        devices = [self._tainted(device, driver, rules) for device in spec.get("devices") or ()] if rules else []
        return {**entry, "spec": {**spec, "devices": devices}} if devices else entry

    def _tainted(self, device: Object, driver: str, rules: Iterable[_Rule]) -> Object:
        named = [rule for rule in rules if rule.selector.device in (None, device.get("name"))]
        # One encoding serves the expressions of all rules.
        content = msgspec.json.encode(device) if any(rule.expressions for rule in named) else b""
        taints = [rule.taint for rule in named if self._matches(rule, driver, content)]
        return {**device, "taints": [*(device.get("taints") or ()), *taints]} if taints else device

    def _matches(self, rule: _Rule, driver: str, content: bytes) -> bool:
        for expression in rule.expressions:
            if not self._deadline.remaining():
                raise _LateError
            try:
                if not expression.matches(driver, content):
                    return False
            except ValueError:
                return False  # it has no value for this device
        return True


class _LateError(Exception):
    """The expressions of the rules need too long."""


async def taint_rules(api: ApiClient, notes: list[str]) -> list[Object]:
    """Return the DeviceTaintRules in the newest version that the server has; add a note for those that are not read.

    Returns [] where a user may not read them, which is normal; raises RetryableError if the server does not respond.
    """
    for kind in DEVICE_TAINT_RULES:
        try:
            found = await api.list(kind)
        except NotFoundError:
            continue
        except (ForbiddenError, InvalidObjectError):
            break
        notes += found.notes
        return found.items
    return []


def tainted(
    slices: list[Object], rules: Sequence[Object], classes: Sequence[Object] | None, notes: list[str]
) -> list[Object]:
    """Return the slices with the taints that the rules add to their devices; add a note for rules that are left out.

    If the expressions of all rules together need longer than EXPRESSIONS_TIMEOUT_S, no rule with an expression is used.
    `classes` is None if they may not be read.
    """
    specs = None if classes is None else {_name(one): one.get("spec") or {} for one in classes}
    usable = [usable for rule in rules if (usable := _usable(rule, specs, notes)) is not None]
    if not usable:
        return slices
    try:
        return _Evaluation(usable).slices(slices)
    except _LateError:
        late = [rule.name for rule in usable if rule.expressions]
        more = f" and {len(late) - MAX_NAMED_RULES} more" if len(late) > MAX_NAMED_RULES else ""
        notes.append(
            f"{', '.join(late[:MAX_NAMED_RULES])}{more}: not evaluated, the expressions of all rules need more than "
            f"{EXPRESSIONS_TIMEOUT_S:.0f} s; their taints are not considered"
        )
        return _Evaluation([rule for rule in usable if not rule.expressions]).slices(slices)


def _usable(rule: Object, classes: Mapping[object, Object] | None, notes: list[str]) -> _Rule | None:
    """Return a rule that can match a device; None with a note if it cannot be evaluated."""
    name = f"DeviceTaintRule {_name(rule)}"
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
    return _Rule(name, selector, expressions, taint)


class _UnknownError(Exception):
    """What a rule depends on cannot be read."""


def _expressions(selector: _Selector, classes: Mapping[object, Object] | None) -> list[str]:
    """Return the CEL expressions of a rule and of its class. LookupError if the class does not exist."""
    found: tuple[_Expression, ...] = ()
    if selector.device_class_name is not None:
        if classes is None:
            raise _UnknownError(f"DeviceClass {selector.device_class_name} cannot be read")
        found = msgspec.convert(classes[selector.device_class_name], _ClassSpec).selectors
    return [one.cel.expression for one in (*found, *selector.selectors) if one.cel is not None]


def _name(value: Object) -> object:
    return (value.get("metadata") or {}).get("name")
