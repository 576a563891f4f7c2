"""Server-side apply, as far as the agent uses it: fields that a manager no longer applies are removed."""

from __future__ import annotations

import copy
from typing import Any

KEYS = {
    "devices": ("driver", "pool", "device", "shareID"),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
}
"""Lists of type map: the key fields of an entry."""


def merge_applied(live: Any, body: Any, before: Any) -> Any:
    """Return `live` with everything in `body`, without fields that only `before` (the manager's last body) had."""
    merged = copy.deepcopy(live)
    _remove_unapplied(merged, body, before)
    return _merge(merged, body)


def _merge(live: Any, body: Any, name: str = "") -> Any:
    if isinstance(live, dict) and isinstance(body, dict):
        for key, value in body.items():
            live[key] = _merge(live[key], value, key) if key in live else copy.deepcopy(value)
        return live
    if isinstance(live, list) and isinstance(body, list) and name in KEYS:
        by_key = {_key(entry, name): entry for entry in live}
        for entry in body:
            key = _key(entry, name)
            if key in by_key:
                _merge(by_key[key], entry)
            else:
                live.append(copy.deepcopy(entry))
        return live
    return copy.deepcopy(body)


def _remove_unapplied(live: Any, body: Any, before: Any, name: str = "") -> None:
    if isinstance(live, dict) and isinstance(before, dict):
        for key, old in before.items():
            if key == "metadata" and "labels" in live.get(key, {}):
                now = (body or {}).get(key, {}).get("labels") or {}
                for gone in (old.get("labels") or {}).keys() - now.keys():
                    live[key]["labels"].pop(gone, None)
            if key in ("apiVersion", "kind", "metadata") or key not in live:
                continue
            now = body.get(key) if isinstance(body, dict) else None
            if now is None and not isinstance(old, (dict, list)):
                del live[key]
            else:
                _remove_unapplied(live[key], now, old, key)
                if now is None and not live[key]:
                    del live[key]
    elif isinstance(live, list) and isinstance(before, list):
        if name not in KEYS:
            if body is None:
                live.clear()
            return
        kept = {_key(entry, name) for entry in body or ()}
        gone = {_key(entry, name) for entry in before} - kept
        live[:] = [entry for entry in live if _key(entry, name) not in gone]
        now = {_key(entry, name): entry for entry in body or ()}
        old_by_key = {_key(entry, name): entry for entry in before}
        for entry in live:
            key = _key(entry, name)
            if key in now and key in old_by_key:
                _remove_unapplied(entry, now[key], old_by_key[key])


def _key(entry: Any, name: str) -> tuple[Any, ...]:
    return tuple(entry.get(key) for key in KEYS[name])
