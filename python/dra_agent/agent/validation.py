"""What is wrong with an object of the API, for those who send one to the agent's socket."""

from __future__ import annotations

from typing import Any

import msgspec

from dra_agent import _native


class FieldError(msgspec.Struct, frozen=True):
    """One thing that the API server would refuse."""

    field: str
    message: str


def validate(value: dict[str, Any]) -> list[FieldError]:
    """Say what the API server would refuse in a resource.k8s.io/v1 object; nothing if it would take it."""
    return msgspec.json.decode(_native.validate_object(msgspec.json.encode(value)), type=list[FieldError])


def validation_messages(value: dict[str, Any]) -> list[str]:
    """Say the same in sentences, with the object's kind and name."""
    metadata = value.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    what = f"{value.get('kind', 'object')} {name}".strip()
    return [f"{what}: {fault.field}: {fault.message}" for fault in validate(value)]
