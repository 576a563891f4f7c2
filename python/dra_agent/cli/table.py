"""Tables of commands: plain lines in a file or a pipe, fitted to the width of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict, Unpack

from dra_agent.cli import terminal
from dra_agent.cli.output import is_wide, prints_names
from dra_agent.printable import printable

MIN_PROSE_COLUMNS = 20
"""Width below which a column of prose is not made narrower, in characters."""
COMFORTABLE_PROSE_COLUMNS = 30
"""Width down to which a column of prose is made narrower before another column is left out, in characters."""


class Layout(TypedDict, total=False):
    """How a table treats its columns, by their names."""

    optional: Sequence[str]
    """On a terminal these are left out, the first one first, until the rest fits."""
    wide: Sequence[str]
    """These are there with `-o wide` only, which leaves out none."""
    prose: Sequence[str]
    """On a terminal these are wrapped; no other cell is folded or cut."""
    named: Callable[[Sequence[object]], str]
    """The name of a row for `-o name`, instead of its first cell. Each name is printed once."""
    empty: str
    """Printed on standard error in place of the headings if the table has no rows. An empty text prints nothing."""


class Rows:
    """A table whose rows are written at once, or as they change; the headings are written once.

    Into a file or a pipe every row is one line, three spaces between its columns.
    """

    def __init__(self, columns: Sequence[str], **layout: Unpack[Layout]) -> None:
        self._columns = columns
        self._optional = layout.get("optional", ())
        self._wide = layout.get("wide", ())
        self._prose = layout.get("prose", ())
        self._named = layout.get("named")
        self._empty = layout.get("empty")
        self._widths: list[int] | None = None
        self._kept: list[int] = []

    def write(self, rows: Iterable[Sequence[object]]) -> None:
        """Print rows; None and empty cells become a dash. The first call chooses the columns and their widths."""
        listed = list(rows)
        if prints_names():
            for name in dict.fromkeys(self._named(row) if self._named is not None else row[0] for row in listed):
                print(printable(str(name), line=True))
            return
        if not listed and self._empty is not None:
            if self._widths is None and self._empty:
                print(self._empty, file=sys.stderr)
            return
        on_terminal = terminal.is_terminal()
        # As they will be shown: a column is as wide as its escaped text.
        cells = [["-" if cell is None or cell == "" else printable(str(cell)) for cell in row] for row in listed]
        if not on_terminal:
            cells = [[", ".join(cell.split("\n")) for cell in row] for row in cells]
        is_first = self._widths is None
        if is_first:
            self._lay_out(cells, on_terminal=on_terminal)
        sys.stdout.flush()
        if is_first:
            from rich.text import Text

            heading = self._line([column.upper() for column in self._columns])
            terminal.console().print(Text(heading, style="bold"), soft_wrap=True)
        for row in cells:
            self._print(row, on_terminal=on_terminal)

    def _lay_out(self, rows: Sequence[Sequence[str]], *, on_terminal: bool) -> None:
        shows_all = is_wide()
        self._kept = [i for i, name in enumerate(self._columns) if shows_all or name not in self._wide]
        natural = [_column_width(name, [row[i] for row in rows]) for i, name in enumerate(self._columns)]
        limit = terminal.console().width
        if on_terminal and not shows_all:
            narrow = [
                min(width, max(COMFORTABLE_PROSE_COLUMNS, len(name))) if name in self._prose else width
                for name, width in zip(self._columns, natural, strict=True)
            ]
            for name in self._optional:
                if self._total(narrow) <= limit:
                    break
                self._kept = [i for i in self._kept if self._columns[i] != name]
        self._widths = natural
        prose = [i for i in self._kept if self._columns[i] in self._prose]
        excess = self._total(natural) - limit
        if not on_terminal or shows_all or excess <= 0 or not prose:
            return
        # The widest column is made narrower first.
        while excess > 0 and (widest := max(prose, key=natural.__getitem__)) is not None:
            if natural[widest] <= max(MIN_PROSE_COLUMNS, len(self._columns[widest])):
                break
            natural[widest] -= 1
            excess -= 1

    def _total(self, widths: Sequence[int]) -> int:
        return sum(widths[i] + len(_GAP) for i in self._kept) - len(_GAP)

    def _line(self, cells: Sequence[str]) -> str:
        assert self._widths is not None
        return _GAP.join(cells[i].ljust(self._widths[i]) for i in self._kept).rstrip()

    def _print(self, row: Sequence[str], *, on_terminal: bool) -> None:
        assert self._widths is not None
        parts = [
            _wrapped(cell, self._widths[i]) if on_terminal and self._columns[i] in self._prose else cell.split("\n")
            for i, cell in enumerate(row)
        ]
        for number in range(max((len(parts[i]) for i in self._kept), default=0)):
            print(self._line([part[number] if number < len(part) else "" for part in parts]))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    **layout: Unpack[Layout],
) -> None:
    """Print rows under upper-case headings at once, as `Rows` lays them out."""
    if title is not None and not prints_names():
        print(title)
    Rows(columns, **layout).write(rows)


_GAP = "   "


def _column_width(heading: str, cells: Iterable[str]) -> int:
    return max([len(heading), *(len(line) for cell in cells for line in cell.split("\n"))])


def _wrapped(cell: str, width: int) -> list[str]:
    """Wrap prose between words; a word that is longer than the width stays whole, because it may be an id."""
    import textwrap

    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return [part for line in cell.split("\n") for part in wrap.wrap(line) or [""]]
