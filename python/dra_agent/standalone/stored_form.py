"""The form in which DeviceClasses and ResourceClaims are stored: a field that is null is absent, and each has a spec.

An API server decodes objects into that form too, and all readers rely on it. Objects of an earlier agent, which kept
them as they came, are rewritten at the start. One that is damaged is moved to a file next to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dra_agent.api_object import Object, identity_of
from dra_agent.errors import PermanentError
from dra_agent.standalone.claim import FAILED, PREPARED, RESTORED
from dra_agent.standalone.store import Store, StoredObject

CLAIM = "ResourceClaim"
CLASS = "DeviceClass"
_OWNED = frozenset(
    (
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "resourceVersion",
        "selfLink",
    )
)
"""Metadata that an API server sets itself; what a client sends has no effect."""
_OWNED_ANNOTATIONS = frozenset((FAILED, PREPARED, RESTORED))
_ANY_JSON = "parameters"
"""The configuration of a driver (RawExtension): its null values belong to the driver."""


def received(value: Object) -> Object:
    """Return an object of a user in the stored form, without what only the agent sets."""
    form = normalized(value)
    form.pop("status", None)
    metadata = {key: member for key, member in form["metadata"].items() if key not in _OWNED}
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {key: text for key, text in annotations.items() if key not in _OWNED_ANNOTATIONS}
    return {**form, "metadata": metadata}


def normalized(value: Object) -> Object:
    """Return an object in the stored form, with its status."""
    form: Object = _without_null(value)
    form.setdefault("spec", {})
    return form


def check(value: Object) -> None:
    """Check that every reader of the store can use an object; raises PermanentError with the field."""
    try:
        msgspec.convert(value, type=_Claim if value.get("kind") == CLAIM else _Class)
    except msgspec.ValidationError as error:
        raise PermanentError(f"the object cannot be stored: {error}", where="/".join(identity_of(value))) from error


def load(store: Store, kind: str, add: Callable[[Object, int], None] | None = None) -> None:
    """Pass each object of a kind with its position to `add`, oldest first.

    Those of the store that are not in the stored form are rewritten, and damaged ones set aside.
    """
    rewritten: list[tuple[int, Object]] = []
    damaged: list[tuple[StoredObject, str]] = []
    for stored in store.each(kind):
        try:
            value = stored.value if _is_normal(stored.value) else normalized(stored.value)
            check(value)
        except (PermanentError, AttributeError, TypeError, RecursionError) as error:
            damaged.append((stored, str(error)))
            continue
        if value != stored.value:
            rewritten.append((stored.position, value))
        if add is not None:
            add(value, stored.position)
    if rewritten:
        store.rewrite(rewritten)
    if damaged:
        store.set_aside(damaged)


def _is_normal(value: Object) -> bool:
    """Return False also if a text contains `null`: tens of thousands of claims are checked at a start."""
    return "spec" in value and b"null" not in msgspec.json.encode(value)


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: member if key == _ANY_JSON else _without_null(member)
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, list):
        return [_without_null(entry) for entry in value]
    return value


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    creation_timestamp: str
    namespace: str = ""
    annotations: dict[str, str] = {}


class _ExactRequest(msgspec.Struct, rename="camel"):
    device_class_name: str = ""


class _Request(msgspec.Struct, rename="camel"):
    exactly: _ExactRequest | None = None
    first_available: list[_ExactRequest] = []


class _Requests(msgspec.Struct):
    requests: list[_Request] = []


class _ClaimSpec(msgspec.Struct):
    devices: _Requests | None = None


class _Result(msgspec.Struct):
    request: str
    driver: str
    pool: str
    device: str


class _Results(msgspec.Struct):
    results: list[_Result] = []


class _Allocation(msgspec.Struct):
    devices: _Results | None = None


class _Status(msgspec.Struct):
    allocation: _Allocation | None = None


class _Claim(msgspec.Struct):
    metadata: _Metadata
    spec: _ClaimSpec
    status: _Status | None = None


class _Expression(msgspec.Struct):
    expression: str


class _Selector(msgspec.Struct):
    cel: _Expression | None = None


class _ClassSpec(msgspec.Struct):
    selectors: list[_Selector] = []


class _Class(msgspec.Struct):
    metadata: _Metadata
    spec: _ClassSpec
