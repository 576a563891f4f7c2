"""Decodes JSON from files, programs and other processes, which may be damaged: one error for every kind of damage."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

_T = TypeVar("_T")


@overload
def decode_json(data: bytes | str) -> Any: ...


@overload
def decode_json(data: bytes | str, type: type[_T]) -> _T: ...


def decode_json(data: bytes | str, type: Any = Any) -> Any:
    """Return the value as msgspec does; raises msgspec.DecodeError only.

    msgspec itself also raises UnicodeDecodeError for text that is not UTF-8, and RecursionError for deep nesting.
    """
    try:
        return msgspec.json.decode(data, type=type)  # noqa: TID251 - the place that the rule names
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from error
