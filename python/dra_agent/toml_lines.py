"""Finds the line of every key and list element of a TOML document that tomllib accepted; tomllib keeps no positions.

The grammar is TOML 1.0 (toml.io/en/v1.0.0). Values are skipped, not decoded.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tomllib

Path = tuple[str | int, ...]
"""`inventory.share[1].when` as ("inventory", "share", 1, "when"); dashes of keys are underscores."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\])*"|\'[^\']*\'', re.DOTALL)
_PLAIN = re.compile(r"[^,\]}#\n]+")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


class TomlLines:
    """The positions of one document."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._counted, self._line = 0, 1
        self._lines: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}
        """The number of the last table of each array of tables."""
        # Lines before an error are correct, and a problem without a line still names its key.
        with contextlib.suppress(RecursionError, ValueError, IndexError):
            self._document()
        del self._text

    def line(self, field: str) -> int | None:
        """Return the line, from 1, of a field such as `inventory.share[0].when`, or of its nearest parent."""
        path = path_of(field)
        # Keys of attributes have dots (`set."example.com/rack"`), so that the text of a path has several readings.
        exact = next((line for known, line in self._lines.items() if field_of(known) == field), None)
        return self.nearest(path) if exact is None else exact

    def nearest(self, path: Path) -> int | None:
        """Return the line, from 1, of the path, or of its nearest parent."""
        return next((self._lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._lines), None)

    def _document(self) -> None:
        prefix: Path = ()
        while self._skip():
            if self._text.startswith("[", self._position):
                is_array = self._text.startswith("[[", self._position)
                line = self._here()
                self._position += 2 if is_array else 1
                prefix = self._table(self._key(), line, is_array=is_array)
                self._skip()
                self._position += 2 if is_array else 1
            else:
                self._pair(prefix)

    def _table(self, keys: list[str], line: int, *, is_array: bool) -> Path:
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._lines.setdefault(path, line)
            if is_array and number == len(keys) - 1:
                self._tables[path] = self._tables.get(path, -1) + 1
            if path in self._tables:
                path = (*path, self._tables[path])
                self._lines.setdefault(path, line)
        return path

    def _pair(self, prefix: Path) -> None:
        line = self._here()
        path = prefix
        for key in self._key():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._skip()
        self._expect("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        character = self._text[self._position]
        if character in "\"'":
            self._match(_STRING)
        elif character == "[":
            self._position += 1
            for number in self._items("]"):
                self._lines.setdefault((*path, number), self._here())
                self._value((*path, number))
        elif character == "{":
            self._position += 1
            for _ in self._items("}"):
                self._pair(path)
        else:
            self._match(_PLAIN)

    def _items(self, end: str) -> Iterator[int]:
        """Yield the number of each item at its start; ends behind the closing bracket."""
        for number in itertools.count():
            self._skip()
            if self._text[self._position] == end:
                self._position += 1
                return
            yield number
            self._skip()
            if self._text[self._position] == ",":
                self._position += 1

    def _key(self) -> list[str]:
        keys = []
        while True:
            self._skip()
            if self._text[self._position] in "\"'":
                quoted = self._match(_STRING)
                name = json.loads(quoted) if quoted.startswith('"') and "\\" in quoted else quoted[1:-1]
            else:
                name = self._match(_BARE_KEY)
            keys.append(name.replace("-", "_"))
            self._skip()
            if self._text[self._position] != ".":
                return keys
            self._position += 1

    def _skip(self) -> bool:
        """Skip white space and comments; return False at the end."""
        self._match(_SPACE)
        return self._position < len(self._text)

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            raise ValueError(self._position)
        self._position = found.end()
        return found[0]

    def _expect(self, character: str) -> None:
        if self._text[self._position] != character:
            raise ValueError(self._position)
        self._position += 1

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        return self._line


def reason_and_line(error: tomllib.TOMLDecodeError, text: str) -> tuple[str, int]:
    """Return why tomllib rejects a text, and the line, from 1."""
    reason, _, place = str(error).partition(" (at ")
    line = re.match(r"line (\d+)", place)
    return reason, int(line[1]) if line else len(text.splitlines()) or 1  # "at end of document"


def path_of(field: str) -> Path:
    """Return `inventory.share[1].when` as a path."""
    return tuple(
        match[1].replace("-", "_") if match[1] is not None else int(match[2]) for match in _STEP.finditer(field)
    )


def field_of(path: Path) -> str:
    """Return a path as text: the inverse of `path_of` unless a key has dots."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
