"""Objects, pages of lists and events of watches as the API server sends them, decoded one by one.

An object that cannot be decoded is left out and named. What its driver defines, and what nothing here reads, does not
make it one (`free_form`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from dra_agent.api_object import Object
from dra_agent.free_form import EACH, may_be_deep, spans, unread_parts, without_unreadable
from dra_agent.json_decode import decode_json

MAX_NOTES = 5
"""Objects of a list that are named as not read."""
_NOT_READ = " cannot be read"
_MORE = " objects: "
_ITEMS = ("items", EACH)
_OBJECT = ("object",)


class Page(NamedTuple):
    """A page of a list."""

    items: list[Object]
    resource_version: str
    next_page: str
    notes: list[str]
    """What is not read: an object that `items` lacks, or a part of one."""


class Event(NamedTuple):
    """An event of a watch."""

    type: str
    object: Object
    problem: str
    """Why the object cannot be read, and has its identity only; empty if it can."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[Any] | None = None


class _Event(msgspec.Struct):
    type: str
    object: Object


class _Identity(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str
    namespace: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: _Identity


def decode_object(text: bytes) -> Any:
    """Return the value of a response; raises msgspec.DecodeError."""
    try:
        value = decode_json(text)
    except msgspec.DecodeError:
        return decode_json(without_unreadable(text))
    if may_be_deep(text) and isinstance(value, dict):
        unread_parts(value)
    return value


def decode_page(text: bytes, kind: str) -> Page:
    """Return a page of objects of a kind; raises msgspec.DecodeError for what is not a list."""
    problems: list[str] = []
    given = text
    try:
        page = _page(text)
    except msgspec.DecodeError:
        text = without_unreadable(text, _ITEMS)
        try:
            page = _page(text)
        except msgspec.DecodeError:
            page = _page_of_single_items(text, problems)
    readable = list(_named_items(page.items or (), problems))
    if may_be_deep(text) or text is not given:
        problems += (
            f"{_name(item['metadata'])}: {', '.join(unread)} cannot be read"
            for item in readable
            if (unread := unread_parts(item))
        )
    notes = [f"{kind} {problem}; it is not considered" for problem in problems]
    return Page(readable, page.metadata.resource_version, page.metadata.next_page, notes)


def decode_event(line: bytes) -> Event:
    """Return an event; raises msgspec.DecodeError for what is none, or is about an object without a name."""
    try:
        event = decode_json(line, type=_Event)
    except msgspec.DecodeError:
        line = without_unreadable(line, _OBJECT)
        try:
            event = decode_json(line, type=_Event)
        except msgspec.DecodeError as error:
            return _damaged(line, error)
    if may_be_deep(line):
        unread_parts(event.object)
    return Event(event.type, event.object, "")


def bounded(notes: list[str], kind: str) -> list[str]:
    """Return the first notes about objects of a kind, and how many more there are."""
    more = len(notes) - MAX_NOTES
    return notes if more <= 0 else [*notes[:MAX_NOTES], f"{kind}{_MORE}{more} more cannot be read, or not all of them"]


def may_be_about(note: str, kind: str, namespace: str, name: str) -> bool:
    """Return whether a note of a list can mean that this object exists and cannot be read."""
    return note.startswith((f"{kind} {namespace}/{name}{_NOT_READ}", f"{kind} {name}{_NOT_READ}", f"{kind}{_MORE}"))


def _page(text: bytes) -> _Page:
    return msgspec.convert(decode_json(text), _Page)


def _page_of_single_items(text: bytes, problems: list[str]) -> _Page:
    """Decode each item of a page alone; raises msgspec.DecodeError if the rest is not a list."""
    found: list[Any] = []
    frame: list[bytes] = []
    end = 0
    for start, stop in spans(text, {_ITEMS}):
        frame += (text[end:start], b"[]")
        end = stop
        try:
            found.append(decode_json(text[start:stop]))
        except msgspec.DecodeError as error:
            problems.append(f"{_name(_identity(text[start:stop]))}{_NOT_READ}: {error}")
    page = _page(b"".join((*frame, text[end:])))
    # A value that is neither an object nor a list has stayed there.
    page.items = [*found, *(item for item in page.items or () if item != [])]
    return page


def _named_items(items: Iterable[Any], problems: list[str]) -> Iterator[Object]:
    for item in items:
        metadata = item.get("metadata") if isinstance(item, dict) else None
        if isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
            yield item
        else:
            problems.append(f"without a name{_NOT_READ}")


def _damaged(line: bytes, error: msgspec.DecodeError) -> Event:
    """Return the event with the identity of its object; raises msgspec.DecodeError if it has none."""
    start, stop = next(iter(spans(line, {_OBJECT})), (0, 0))
    identity = _identity(line[start:stop])
    if not identity:
        raise error
    frame = decode_json(line[:start] + b"{}" + line[stop:], type=_Event)
    return Event(frame.type, {"metadata": identity}, f"{_name(identity)}{_NOT_READ}: {error}")


def _identity(text: bytes) -> dict[str, Any]:
    """Return name, namespace and version in the metadata of an object that cannot be decoded; {} without a name."""
    for start, stop in spans(text, {("metadata",)}):
        try:
            identity = decode_json(b'{"metadata":' + _without_managed_fields(text[start:stop]) + b"}", type=_Named)
        except msgspec.DecodeError:
            continue
        found: dict[str, Any] = msgspec.to_builtins(identity.metadata)
        return found
    return {}


def _without_managed_fields(metadata: bytes) -> bytes:
    for start, stop in spans(metadata, {("managedFields",)}):
        return metadata[:start] + b"[]" + metadata[stop:]
    return metadata


def _name(metadata: dict[str, Any]) -> str:
    """Return NAMESPACE/NAME, or the name of an object without a namespace."""
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)) or "without a name"
