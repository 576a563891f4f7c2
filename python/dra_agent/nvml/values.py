"""Arguments and results of pynvml's functions as JSON values, and back.

Numbers, text and None are not converted; everything else is an object of one key:
`b` bytes in hex, `l` list, `t` tuple, `p` a handle [type, token], `d` a ctypes value [type, bytes in hex], `r` a
reference (ctypes.byref) to one. Types are named as pynvml or ctypes name them, arrays `TYPE[length]`, pointers `TYPE*`.

A handle is an address in the library's process and is invalid elsewhere, so a token is sent instead. Only the side
that has the library has a table of them (`Handles`); the other passes them through, also inside of structures.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType

TYPE_CHECKING = False  # typing, which has it too, takes 0.5 MiB of the worker
if TYPE_CHECKING:
    from typing import Any

Translate = Callable[[int], int]
_PLAIN = (bool, int, float, str)
"""Not as a union, which would be made again for each of the values of a sample."""
_WORD = ctypes.sizeof(ctypes.c_void_p)
_SIMPLE = ctypes._SimpleCData
_POINTER = ctypes._Pointer
_REFERENCE = type(ctypes.byref(ctypes.c_int()))
_DATA = (ctypes.Structure, ctypes.Union, ctypes.Array, _SIMPLE)
_TEXT = (ctypes.c_char_p, ctypes.c_wchar_p)


class StaleHandleError(ValueError):
    """A handle is of an earlier library process that has exited."""


class Handles:
    """Handles of one process, as tokens that are unique to it."""

    def __init__(self, generation: int) -> None:
        self._base = generation << 32
        self._tokens: dict[int, int] = {}
        self._addresses: dict[int, int] = {}

    def token(self, address: int) -> int:
        """Return the token of an address; 0 stays 0."""
        if not address:
            return 0
        token = self._tokens.setdefault(address, self._base + len(self._tokens) + 1)
        self._addresses[token] = address
        return token

    def address(self, token: int) -> int:
        """Return the address of a token; raises StaleHandleError."""
        if not token:
            return 0
        try:
            return self._addresses[token]
        except KeyError:
            raise StaleHandleError("a handle of a process that has ended") from None


class Codec:
    """Both directions, for one side. `give` and `take` translate the words of handles that leave and arrive."""

    def __init__(self, module: ModuleType, give: Translate = int, take: Translate = int) -> None:
        self._module = module
        self._give = give
        self._take = take

    def encode(self, value: Any) -> Any:
        """Convert a value to JSON; raises TypeError for unsupported types."""
        if value is None or isinstance(value, _PLAIN):
            return value
        if isinstance(value, bytes):
            return {"b": value.hex()}
        if isinstance(value, list | tuple):
            return {"l" if isinstance(value, list) else "t": [self.encode(item) for item in value]}
        if isinstance(value, _POINTER):
            word = ctypes.cast(value, ctypes.c_void_p).value or 0
            return {"p": [self._name(type(value)), self._give(word)]}
        if isinstance(value, _REFERENCE):
            return {"r": self.encode(value._obj)}  # type: ignore[attr-defined]  # noqa: SLF001 - ctypes has no public way from a reference to its object
        if isinstance(value, _DATA):
            return {"d": [self._name(type(value)), self.content(value)]}
        raise TypeError(f"a {type(value).__name__} cannot leave its process")

    def decode(self, value: Any) -> Any:
        """Convert a value from JSON; raises StaleHandleError, and ValueError for invalid data."""
        if value is None or isinstance(value, _PLAIN):
            return value
        if not isinstance(value, dict) or len(value) != 1:
            raise ValueError(f"no value: {value!r:.80}")
        ((kind, inner),) = value.items()
        match kind, inner:
            case "b", str():
                return bytes.fromhex(inner)
            case "l", list():
                return [self.decode(item) for item in inner]
            case "t", list():
                return tuple(self.decode(item) for item in inner)
            case "p", [str(name), int(word)] if name.endswith("*"):
                return ctypes.cast(self._take(word), self._type(name))
            case "d", [str(name), str(content)]:
                data = self._type(name)()
                self.fill(data, content)
                return data
            case "r", dict():
                return ctypes.byref(self.decode(inner))
        raise ValueError(f"no value of kind {kind!r}")

    def content(self, data: Any) -> str:
        """Return a ctypes value's bytes, in hex, with the handles in it translated."""
        return _translated(bytes(data), type(data), self._give).hex()

    def fill(self, data: Any, content: str) -> None:
        """Copy bytes into a ctypes value in place; raises ValueError if the sizes differ."""
        raw = bytes.fromhex(content)
        if len(raw) != ctypes.sizeof(data):
            raise ValueError(f"{len(raw)} bytes for a {type(data).__name__} of {ctypes.sizeof(data)}")
        ctypes.memmove(ctypes.addressof(data), _translated(raw, type(data), self._take), len(raw))

    def _name(self, kind: Any) -> str:
        if issubclass(kind, _POINTER):
            return f"{self._name(kind._type_)}*"
        if issubclass(kind, ctypes.Array):
            return f"{self._name(kind._type_)}[{kind._length_}]"
        name: str = kind.__name__
        if self._type(name) is not kind:
            raise TypeError(f"a {name} cannot leave its process")
        return name

    def _type(self, name: str) -> Any:
        if name.endswith("*"):
            return ctypes.POINTER(self._type(name[:-1]))
        if name.endswith("]"):
            element, _, length = name[:-1].rpartition("[")
            return self._type(element) * int(length)
        found = getattr(self._module, name, None) or getattr(ctypes, name, None)
        if not isinstance(found, type) or not issubclass(found, (ctypes.Structure, ctypes.Union, _SIMPLE)):
            raise ValueError(f"no type {name!r}")
        return found


def targets(value: Any) -> Any:
    """Return the object that a call may write: the value, or the target of a reference; None if there is none."""
    inner = value._obj if isinstance(value, _REFERENCE) else value  # type: ignore[attr-defined]  # noqa: SLF001 - ctypes has no public way from a reference to its object
    return inner if isinstance(inner, _DATA) and not isinstance(inner, _POINTER) else None


def _translated(raw: bytes, kind: type, translate: Translate) -> bytes:
    words = _words(kind)
    if not words:
        return raw
    changed = bytearray(raw)
    for offset, is_text in words:
        word = int.from_bytes(raw[offset : offset + _WORD], "little")
        # The text is in the other process: the pointer is invalid here.
        changed[offset : offset + _WORD] = (0 if is_text else translate(word)).to_bytes(_WORD, "little")
    return bytes(changed)


def _words(kind: Any) -> list[tuple[int, bool]]:
    """Where in a type's bytes there are pointers, and whether each is one to text."""
    if issubclass(kind, _POINTER) or kind is ctypes.c_void_p or kind in _TEXT:
        return [(0, kind in _TEXT)]
    if issubclass(kind, ctypes.Array):
        size, inner = ctypes.sizeof(kind._type_), _words(kind._type_)
        return [(index * size + offset, text) for index in range(kind._length_) for offset, text in inner]
    if issubclass(kind, ctypes.Structure):
        return [
            (getattr(kind, field[0]).offset + offset, text)
            for field in getattr(kind, "_fields_", ())
            for offset, text in _words(field[1])
        ]
    return []
