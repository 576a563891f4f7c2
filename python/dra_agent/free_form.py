"""Free-form parts of API objects: opaque parameters and the data of device statuses, which their drivers define.

The API server stores their text as a user wrote it. It may be nested to 10,000 levels, and have escapes that denote no
character; Python's and Rust's decoders refuse both. Such a part is replaced by NOT_READ, so that one object of one
tenant affects no other object. Everything else in an object has a type, and is decoded as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from dra_agent.api_object import Object
from dra_agent.json_decode import decode_json

MAX_DEPTH = 100
"""Levels of a free-form part that is read; serde_json reads 128, those of the object around it included."""
NOT_READ = f"not read: not valid JSON, or nested deeper than {MAX_DEPTH} levels"
"""Takes the place of a part; the API server permits objects only there, so no user has written it."""
EACH = "*"
"""The entries of a list, in a path."""
MANAGED_FIELDS = ("metadata", "managedFields")
PATHS = (
    ("spec", "devices", "config", EACH, "opaque", "parameters"),
    ("spec", "spec", "devices", "config", EACH, "opaque", "parameters"),
    ("spec", "config", EACH, "opaque", "parameters"),
    ("status", "allocation", "devices", "config", EACH, "opaque", "parameters"),
    ("status", "devices", EACH, "data"),
)
"""Of claims, templates and classes."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"(\s*:)?|[\[\]{}]', re.DOTALL)
_OPENING = b"[{"
_SMALL_BYTES = 1 << 16
_KEYS = (b'"opaque"', b'"data"')


def may_be_deep(text: bytes) -> bool:
    """Return False for the text of objects without a part that is not read: searches instead of a walk."""
    # Of the two searches the cheaper one first.
    if len(text) < _SMALL_BYTES and text.count(b"{") + text.count(b"[") <= MAX_DEPTH:
        return False
    return any(key in text for key in _KEYS)


def unread_parts(value: Object) -> list[str]:
    """Replace the parts of an object that are nested too deeply, and return the fields of all that are not read.

    It removes metadata.managedFields, which repeat the fields of the parts.
    """
    metadata = value.get(MANAGED_FIELDS[0])
    if isinstance(metadata, dict):
        metadata.pop(MANAGED_FIELDS[1], None)
    unread = []
    for path in PATHS:
        for owner in _owners(value, path):
            part = owner[path[-1]]
            if part == NOT_READ or _is_deep(part):
                owner[path[-1]] = NOT_READ
                unread.append(".".join(path).replace(f".{EACH}", "[]"))
    return list(dict.fromkeys(unread))


def without_unreadable(text: bytes, prefix: Sequence[str] = ()) -> bytes:
    """Return the text with NOT_READ in the place of parts that cannot be read; `prefix` is the path of the objects.

    Lines stay where they are. Text that is not JSON is returned as far as it was understood, for the decoder to report.
    """
    wanted = {(*prefix, *path) for path in (*PATHS, MANAGED_FIELDS)}
    kept: list[bytes] = []
    end = 0
    for start, stop in spans(text, wanted):
        part = text[start:stop]
        try:
            if not _is_deep(decode_json(part)):
                continue
        except msgspec.DecodeError:
            pass
        kept += (text[end:start], msgspec.json.encode(NOT_READ), b"\n" * part.count(b"\n"))
        end = stop
    return b"".join((*kept, text[end:])) if kept else text


def spans(text: bytes, wanted: Iterable[tuple[str, ...]]) -> Iterator[tuple[int, int]]:
    """Yield where the lists and objects at these paths begin and end, in the order of the text; any depth is fine."""
    paths = {tuple(step.encode() for step in path) for path in wanted}
    lengths = {len(path) for path in paths}
    path: list[bytes] = []
    """The step of each open container in its parent; that of the outermost has no meaning."""
    starts: list[int] = []
    lists: list[bool] = []
    key = b""
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first == _QUOTE:
            if token[1] is not None and lists and not lists[-1]:
                key = text[token.start() + 1 : token.start(1) - 1]
        elif first in _OPENING:
            path.append(_EACH if lists and lists[-1] else key)
            starts.append(token.start())
            lists.append(first == _OPENING[0])
        elif not starts:
            return
        else:
            if len(path) - 1 in lengths and tuple(path[1:]) in paths:
                yield starts[-1], token.end()
            path.pop()
            starts.pop()
            lists.pop()


_QUOTE = b'"'[0]
_EACH = EACH.encode()


def _owners(value: Any, path: Sequence[str], begin: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the objects that have a field at the path."""
    for position in range(begin, len(path) - 1):
        if path[position] == EACH:
            for entry in value if isinstance(value, list) else ():
                yield from _owners(entry, path, position + 1)
            return
        if not isinstance(value, dict):
            return
        value = value.get(path[position])
    if isinstance(value, dict) and path[-1] in value:
        yield value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [one for one in level if isinstance(one, dict | list)]
        if not containers:
            return False
        level = [child for one in containers for child in (one.values() if isinstance(one, dict) else one)]
    return True
