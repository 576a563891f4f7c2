"""The log of NVML calls in a recording: one JSON object in a line, in the order of the responses.

A line has the call's `name` and `args`, its response as the worker process returns it (`value`, or `refused` with the
code and text of an error, and `filled`), and `ms`, the milliseconds that the library took. `values` describes how
arguments and results are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from dra_agent.json_decode import decode_json

MAX_CALLS = 100_000
MAX_LINE_BYTES = 1 << 20
_MAX_DEPTH = 8
_MAX_WORD = 1 << 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}(?:\[[0-9]{1,6}\]|\*){0,4}")
_HEX_DIGITS = frozenset("0123456789abcdef")


class CallLogError(ValueError):
    """An invalid line; `line` is its number."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class RecordedCall(msgspec.Struct, omit_defaults=True):
    """One call and its response."""

    name: str
    args: list[Any]
    value: Any = None
    refused: tuple[int, str] | None = None
    """Code (nvmlReturn_t) and text of an error."""
    missing: str | None = None
    """The library could not be loaded."""
    defect: str | None = None
    """The binding has no such function, or does not accept the arguments."""
    stale: str | None = None
    filled: list[tuple[int, str]] = []
    """Output arguments of the call: position, and bytes in hexadecimal."""
    ms: float = 0.0

    @property
    def code(self) -> int | None:
        """The nvmlReturn_t: 0 for success, None where the call did not reach the library."""
        if self.refused is not None:
            return self.refused[0]
        return None if self.missing or self.defect or self.stale else 0


def parse(content: bytes) -> list[RecordedCall]:
    """Read a log. Raises CallLogError."""
    calls: list[RecordedCall] = []
    if content and not content.endswith(b"\n"):
        raise CallLogError(content.count(b"\n") + 1, "the last line is torn")
    for number, line in enumerate(content.splitlines(), 1):
        if number > MAX_CALLS or len(line) > MAX_LINE_BYTES:
            raise CallLogError(number, "more calls, or a longer line, than a log may have")
        try:
            call = decode_json(line, type=RecordedCall)
        except msgspec.DecodeError as error:
            raise CallLogError(number, f"not a call: {error}") from None
        if problem := _problem(call):
            raise CallLogError(number, problem)
        calls.append(call)
    return calls


def encode(calls: Iterable[RecordedCall]) -> bytes:
    """Write a log."""
    encoder = msgspec.json.Encoder()
    return b"".join(encoder.encode(call) + b"\n" for call in calls)


def _problem(call: RecordedCall) -> str:
    if not _NAME.fullmatch(call.name):
        return "not the name of a function"
    if not all(_is_value(value, 0) for value in (call.args, call.value)):
        return f"{call.name}: an argument or a result is not a value"
    if not all(0 <= place < len(call.args) and _is_hex(content) for place, content in call.filled):
        return f"{call.name}: bytes are filled into an argument that does not exist"
    return "" if 0 <= call.ms < 1e9 else f"{call.name}: not a duration"


def _is_value(value: Any, depth: int) -> bool:
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, list):
        return all(_is_value(item, depth + 1) for item in value)
    if isinstance(value, int):
        return -_MAX_WORD < value < _MAX_WORD
    if not isinstance(value, dict):
        return True
    match value:
        case {"b": str(text)} if len(value) == 1:
            return _is_hex(text)
        case {"l": list(items)} | {"t": list(items)} if len(value) == 1:
            return _is_value(items, depth + 1)
        case {"p": [str(name), int(word)]} if len(value) == 1:
            return bool(_TYPE.fullmatch(name)) and 0 <= word < _MAX_WORD
        case {"d": [str(name), str(text)]} if len(value) == 1:
            return _is_hex(text) and _is_type(name, len(text) // 2)
        case {"r": dict(inner)} if len(value) == 1:
            return _is_value(inner, depth + 1)
    return False


def _is_type(name: str, size: int) -> bool:
    """Whether a type's name is well-formed, and an array not longer than its content: it is allocated to be read."""
    elements = 1
    for length in re.findall(r"\[(\d+)\]", name):
        elements *= int(length)
    return bool(_TYPE.fullmatch(name)) and elements <= max(size, 1)


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and _HEX_DIGITS.issuperset(text)
