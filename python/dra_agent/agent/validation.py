"""What is wrong with an object of the API, for those who send one to the agent's socket."""

from __future__ import annotations

from typing import Any

import msgspec

from dra_agent import _native


class _Error(msgspec.Struct, frozen=True):
    field: str
    message: str


def problems_of(value: dict[str, Any]) -> list[str]:
    """Say what the API server would refuse; nothing if it would take the object."""
    errors = msgspec.json.decode(_native.validate_object(msgspec.json.encode(value)), type=list[_Error])
    metadata = value.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    what = f"{value.get('kind', 'object')} {name}".strip()
    return [f"{what}: {error.field}: {error.message}" for error in errors]
