"""The keys and values of the configuration in a form that templates of the chart can check: files/config-keys.json.

Helm has no JSON schema for a string that contains TOML. Each key has `types` (kinds of Go's values), and where they
exist `required`, `enum`, `min` and `max` (inclusive), `above` (exclusive), `keys` of a table, and `items` of a list.
`reload` marks a key that an agent applies without a restart, `removed` one of an earlier version, which it ignores.
"""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from dra_agent.agent.config import Config
from dra_agent.agent.config_file import REMOVED_KEYS
from dra_agent.agent.config_keys import is_reloadable

KINDS = {bool: ["bool"], str: ["string"], Path: ["string"], int: ["int64"], float: ["int64", "float64"]}


def text() -> str:
    """Return the JSON text."""
    keys = _keys(Config, "") | {name: {"reload": True, "removed": True} for name in REMOVED_KEYS}
    return json.dumps(keys, indent=1, sort_keys=True) + "\n"


def _keys(struct: type[msgspec.Struct], path: str) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        found[field.name] = _value(hints[field.name], f"{path}{field.name}")
        if field.required:
            found[field.name]["required"] = True
        if is_reloadable(f"{path}{field.name}"):
            found[field.name]["reload"] = True
    return found


def _value(hint: Any, path: str) -> dict[str, Any]:
    origin, members = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _value(members[0], path) | _limits([one for one in members[1:] if isinstance(one, msgspec.Meta)])
    if origin is Literal:
        return {"types": ["string"], "enum": list(members)}
    if origin in (Union, types.UnionType):
        found: dict[str, Any] = {"types": []}
        for one in (_value(member, path) for member in members if member is not type(None)):
            found = {**found, **one, "types": found["types"] + one["types"]}
        return found
    if origin is tuple:
        return {"types": ["slice"], "items": _value(members[0], path)}
    if origin is dict:
        return {"types": ["map"]}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return {"types": ["map"], "keys": _keys(hint, f"{path}.")}
    return {"types": KINDS[hint]}


def _limits(metas: list[msgspec.Meta]) -> dict[str, Any]:
    return {
        name: limit
        for meta in metas
        for name, limit in (("min", meta.ge), ("max", meta.le), ("above", meta.gt))
        if limit is not None
    }
