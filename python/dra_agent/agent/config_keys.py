"""The keys of the configuration as a list: type, default, and how a change takes effect.

Commands, the reload and the page of all keys read it, so that none of them repeats the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from dra_agent.agent.config import HELP, PREFIX, Config
from dra_agent.reclaim.settings import ReclaimSettings

Effect = Literal["reload", "restart"]

RELOADABLE = frozenset(
    {
        "log_level",
        "log_format",
        "inventory.include",
        "inventory.exclude",
        "inventory.attributes",
        "inventory.overhead",
        "inventory.fabric_file",
        "inventory.host_interfaces",
        "inventory.displays",
        "inventory.host_uplink",
        "health",
        *(
            f"reclaim.{key}"
            for key in ReclaimSettings.__struct_fields__
            if key not in ("evict", "cordon", "pod_notices")
        ),
    }
)
"""Keys, or sections with all their keys, that apply to a running agent.

`evict`, `cordon` and `pod_notices` need permissions, which the chart grants together with a restart."""

DEPRECATED = frozenset({"inventory.host_uplink"})
"""Keys that another one has replaced: commands show them where they are set only."""


class ConfigKey(msgspec.Struct, frozen=True):
    """One key of the file."""

    name: str
    """Such as `health.fatal`."""
    kind: str
    """A description of the accepted values."""
    default: Any
    change: Effect
    """The action that applies a change."""
    flag: str | None
    variable: str | None


def config_keys() -> list[ConfigKey]:
    """Return every key, in the order of the schema; an array of tables is one key."""
    return [
        ConfigKey(
            name,
            _kind(kind),
            _plain(default),
            "reload" if is_reloadable(name) else "restart",
            "--" + name.replace("_", "-") if name in HELP else None,
            PREFIX + name.upper() if name in HELP else None,
        )
        for name, kind, default in _leaves(Config())
    ]


def is_reloadable(key: str) -> bool:
    """Return True if a change of a key, or of a part of one, applies without a restart."""
    steps = key.split(".")
    return any(".".join(steps[: n + 1]) in RELOADABLE for n in range(len(steps)))


def values_of(config: Config) -> dict[str, Any]:
    """Return the values of a configuration by key, as JSON values."""
    return {name: _plain(value) for name, _, value in _leaves(config)}


def changed_keys(one: Config, other: Config) -> list[str]:
    """Return the keys whose values differ, in the order of the schema."""
    before = {name: value for name, _, value in _leaves(one)}
    return [name for name, _, value in _leaves(other) if before[name] != value]


def _leaves(struct: msgspec.Struct, above: str = "") -> Iterator[tuple[str, Any, Any]]:
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}", field.type, value


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


def _kind(kind: Any) -> str:
    """Describe a type: `debug | info`, `text`, `list of tables`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(str(part) or '""' for part in parts)
    if kind is type(None):
        return ""
    if origin is tuple:
        inner = _kind(parts[0])
        return f"list of {inner if inner == 'text' else inner + 's'}"
    if origin is dict:
        return f"table of {_kind(parts[1])}"
    if hasattr(kind, "__metadata__"):
        return _kind(parts[0])
    if parts:
        return " | ".join(filter(None, map(_kind, parts)))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "table"
    names = {"bool": "true | false", "str": "text", "int": "whole number", "float": "number", "Path": "path"}
    return names[kind.__name__]
