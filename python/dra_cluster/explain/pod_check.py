"""Checks what a pod from a user's file says about claims and extended resources, as the API server and kubectl do.

Only these fields: another mistake of the pod does not change what is reported about its devices.
Source: k8s.io/kubernetes v1.37.2, pkg/apis/core/validation (validatePodResourceClaims, validateResourceClaimNames,
validateContainerResourceRequirements).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_cluster.amount import amount
from dra_cluster.explain.extended_resources import is_extended

_REFERENCES = ("resourceClaimName", "resourceClaimTemplateName")
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NO_LABEL = "is not lowercase letters, digits and '-', at most 63"
_ONE_OF = f"set one of {' and '.join(_REFERENCES)}"


class Mistake(NamedTuple):
    """Why the API server refuses a pod, or kubectl does."""

    field: str
    """Its path below the pod's spec, such as `resourceClaims[0].source`."""
    message: str
    hint: str


def mistakes_of(spec: Object) -> Iterator[Mistake]:
    """Yield the mistakes of a pod's spec, whose fields have their types."""
    yield from _unknown_keys(spec, "", ("resourceClaims",), "of a pod")
    claims = spec.get("resourceClaims") or ()
    names: list[str] = []
    for index, entry in enumerate(claims):
        field = f"resourceClaims[{index}]"
        yield from _claim(entry, field, names)
        names.append(entry.get("name") or "")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            field = f"{kind}[{index}]"
            yield from _unknown_keys(container, f"{field}.", (), "of a container")
            yield from _resources(container.get("resources") or {}, f"{field}.resources", names)


def _unknown_keys(value: Object, path: str, known: Iterable[str], of: str) -> Iterator[Mistake]:
    """Yield keys that look like the list of claims, and are not at its place."""
    for key in value:
        if key not in known and (key == "claims" or key.lower().startswith("resourceclaim")):
            hint = "name claims in spec.resourceClaims of the pod, and in resources.claims of its containers"
            yield Mistake(f"{path}{key}", f"is not a field {of}", hint)


def _claim(entry: Object, field: str, earlier: list[str]) -> Iterator[Mistake]:
    name = entry.get("name") or ""
    for key in entry:
        if key not in ("name", *_REFERENCES):
            since = ", as it was before Kubernetes 1.31" if key == "source" else " of a pod's claim"
            yield Mistake(f"{field}.{key}", f"is not a field{since}", f"remove it, and {_ONE_OF} in {field}")
    given = [key for key in _REFERENCES if entry.get(key)]
    if not _LABEL.fullmatch(name):
        yield Mistake(f"{field}.name", f"{name!r} {_NO_LABEL}", "the name is the pod's own for the claim")
    elif name in earlier:
        yield Mistake(f"{field}.name", f"{name} is used twice", "give each claim of the pod its own name")
    if not given:
        yield Mistake(field, "names neither a claim nor a template", _ONE_OF)
    elif len(given) > 1:
        yield Mistake(field, "names both a claim and a template", _ONE_OF)


def _resources(resources: Object, field: str, names: list[str]) -> Iterator[Mistake]:
    for key in resources:
        if key not in ("limits", "requests", "claims"):
            yield Mistake(f"{field}.{key}", "is not a field of resources", "there are limits, requests and claims")
    claims = resources.get("claims")
    known: list[tuple[object, object]] = []
    for index, entry in enumerate(claims if isinstance(claims, list) else ()):
        place = f"{field}.claims[{index}]"
        if not isinstance(entry, dict) or not entry.keys() <= {"name", "request"}:
            yield Mistake(place, "is not an object with name, and perhaps request", "name an entry of resourceClaims")
            continue
        name, request = entry.get("name"), entry.get("request")
        if name not in names:
            there = f"they are {', '.join(filter(None, names))}" if any(names) else "there are none"
            yield Mistake(f"{place}.name", f"{name} is not the name of an entry of spec.resourceClaims", there)
        if (name, request) in known or (name, None) in known or (request is None and name in dict(known)):
            yield Mistake(place, f"claim {name} is named twice", "name it once, or each of its requests once")
        known.append((name, request))
    if claims is not None and not isinstance(claims, list):
        yield Mistake(f"{field}.claims", "is not a list", "give a list of objects with a name")
    yield from _quantities(resources, field)


def _quantities(resources: Object, field: str) -> Iterator[Mistake]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, quantities in (("limits", limits), ("requests", requests)):
        for name, value in quantities.items():
            number = amount(value)
            if not is_extended(name):
                continue
            if number is None or number.denominator != 1 or number < 0:
                yield Mistake(f"{field}.{kind}.{name}", f"{value} is not a whole number", "devices are not divided")
            elif kind == "requests" and amount(limits.get(name)) != number:
                of = f"the limit {limits[name]}" if name in limits else "a limit, which is missing"
                hint = "an extended resource has one number: leave the request out, or make both equal"
                yield Mistake(f"{field}.requests.{name}", f"{value} is not equal to {of}", hint)
