"""Output of commands: tables, JSON and YAML, and progress on a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from dra_agent.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
import argparse
from collections.abc import Callable, Iterable, Sequence

from dra_agent.printable import is_printable, json_printable


class Guarded:
    """A stream that escapes control characters and passes the rest to another one."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # In a locale that is not UTF-8, a character that it lacks is escaped and does not end the command.
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write the text and return its number of characters."""
        self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below; closing this one does not close that one."""
        self.raw.flush()

    def isatty(self) -> bool:
        """True if the underlying stream is a terminal."""
        return self.raw.isatty()

    def fileno(self) -> int:
        """The descriptor of the stream below."""
        return self.raw.fileno()

    def __getattr__(self, name: str) -> Any:
        # encoding, errors, buffer, newlines: as they are below.
        return getattr(self.raw, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard standard output and standard error within the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_guard(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Make a console of `rich` on a standard stream; `width` in columns, None for the terminal's own."""
    from rich.console import Console
    from rich.segment import Segment

    class EscapingConsole(Console):
        """Escapes the text that it renders, also on live lines; its own control codes are unchanged."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    stream: Any = sys.stderr if stderr else sys.stdout
    return EscapingConsole(file=stream.raw if isinstance(stream, Guarded) else stream, width=width, highlight=False)


def _guard(stream: TextIO) -> TextIO:
    return stream if isinstance(cast("Any", stream), Guarded) else cast("TextIO", Guarded(stream))


def write_binary(data: bytes) -> None:
    """Write bytes, such as an archive, to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


FORMATS = ("table", "wide", "name", "json", "yaml")
CDI = "cdi"
"""The format of commands that show claims: their CDI device ids only, one a line."""
FLAGS = "flags"
"""The same ids for a command line: one line with `--device ID` for each, as podman, docker and ctr take it."""
ID_FORMATS = (CDI, FLAGS)


def add_output_flag(parser: argparse.ArgumentParser, *, cdi: bool = False) -> None:
    """Add `-o table|wide|name|json|yaml`, with `cdi` also ID_FORMATS; `wide` and `name` are other layouts of tables."""
    _layout.name = "table"
    parser.add_argument(
        "-o",
        "--output",
        action=_OutputAction,
        choices=(*FORMATS, *(ID_FORMATS if cdi else ())),
        default="table",
        help="output format: wide is a table with every column, name prints names only"
        + (", cdi prints CDI device ids only, flags prints them as one line of --device flags" if cdi else ""),
    )


class _Layout:
    """The layout of this command's tables."""

    name = "table"


_layout = _Layout()


class _OutputAction(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        _layout.name = values
        setattr(namespace, self.dest, "table" if values in ("wide", "name") else values)


def emit_ids(ids: Iterable[str], output: str) -> None:
    """Print CDI device ids in one of ID_FORMATS; nothing without any. An id has no character that a shell expands."""
    if output == CDI:
        for name in ids:
            print(name)
    # Claims that share a device have the same id of the device's vendor, which a container needs once.
    elif flags := " ".join(f"--device {name}" for name in dict.fromkeys(ids)):
        print(flags)


def emit(value: Any, output: str, *, stream: bool = False) -> None:
    """Print a JSON-like value as JSON or YAML; `stream`: as one of several, which a parser can separate.

    In a stream JSON has one line, and YAML begins with `---`.
    """
    import msgspec

    if output == "json":
        encoded = msgspec.json.encode(value)
        text = json_printable((encoded if stream else msgspec.json.format(encoded, indent=2)).decode())
    else:
        import yaml

        plain = msgspec.json.decode(msgspec.json.encode(value))
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
        if not is_printable(text):
            # In ASCII every string with such a character is quoted and escaped, and reads as the same value.
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=120).rstrip("\n")
        if stream:
            text = f"---\n{text}"
    print(text)


def rounded(quantity: str) -> str:
    """Format bytes as a Kubernetes quantity.

    A number that is not a multiple of 1 Mi is rounded: 3435973836 is ~3.2Gi.
    """
    if not quantity.isascii() or not quantity.isdigit() or int(quantity) < 1 << 20:
        return quantity
    amount = int(quantity)
    shift, unit = next((shift, unit) for shift, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi")) if amount >= 1 << shift)
    return f"~{amount / (1 << shift):.1f}{unit}" if amount % (1 << shift) else f"{amount >> shift}{unit}"


MIN_PROSE_COLUMNS = 20
"""Width below which a column of prose is not made narrower, in characters."""
COMFORTABLE_PROSE_COLUMNS = 30
"""Width down to which a column of prose is made narrower before another column is left out, in characters."""


class Rows:
    """A table whose rows are written at once, or as they change; the headings are written once.

    Into a file or a pipe every row is one line, three spaces between its columns. On a terminal columns of `prose` are
    wrapped, and the columns that are `optional` are left out, the first one first, until the rest fits; no other cell
    is folded or cut. `wide` columns are there with `-o wide` only, which leaves out none. With `-o name`
    each name of a row is printed once: the first column, or `named`. Without any row, `empty` is printed on standard
    error instead of the headings.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        optional: Sequence[str] = (),
        wide: Sequence[str] = (),
        prose: Sequence[str] = (),
        named: Callable[[Sequence[object]], str] | None = None,
        empty: str | None = None,
    ) -> None:
        self._empty = empty
        self._columns = columns
        self._optional = optional
        self._wide = wide
        self._prose = prose
        self._named = named
        self._widths: list[int] | None = None
        self._kept: list[int] = []

    def write(self, rows: Iterable[Sequence[object]]) -> None:
        """Print rows; None and empty cells become a dash. The first call chooses the columns and their widths."""
        listed = list(rows)
        if _layout.name == "name":
            for name in dict.fromkeys(self._named(row) if self._named is not None else row[0] for row in listed):
                print(name)
            return
        if not listed and self._empty is not None:
            if self._widths is None and self._empty:
                print(self._empty, file=sys.stderr)
            return
        on_terminal = is_terminal()
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
            console().print(Text(heading, style="bold"), soft_wrap=True)
        for row in cells:
            self._print(row, on_terminal=on_terminal)

    def _lay_out(self, rows: Sequence[Sequence[str]], *, on_terminal: bool) -> None:
        is_wide = _layout.name == "wide"
        self._kept = [i for i, name in enumerate(self._columns) if is_wide or name not in self._wide]
        natural = [_column_width(name, [row[i] for row in rows]) for i, name in enumerate(self._columns)]
        limit = console().width
        if on_terminal and not is_wide:
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
        if not on_terminal or is_wide or excess <= 0 or not prose:
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
    optional: Sequence[str] = (),
    wide: Sequence[str] = (),
    prose: Sequence[str] = (),
    named: Callable[[Sequence[object]], str] | None = None,
    empty: str | None = None,
) -> None:
    """Print rows under upper-case headings at once, as `Rows` lays them out."""
    if title is not None and _layout.name != "name":
        print(title)
    Rows(columns, optional=optional, wide=wide, prose=prose, named=named, empty=empty).write(rows)


_GAP = "   "


def is_terminal() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout.isatty()


def is_wide() -> bool:
    """Return True for `-o wide`."""
    return _layout.name == "wide"


def prints_names() -> bool:
    """Return True for `-o name`: only names are printed."""
    return _layout.name == "name"


def _column_width(heading: str, cells: Iterable[str]) -> int:
    return max([len(heading), *(len(line) for cell in cells for line in cell.split("\n"))])


def _wrapped(cell: str, width: int) -> list[str]:
    """Wrap prose between words; a word that is longer than the width stays whole, because it may be an id."""
    import textwrap

    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return [part for line in cell.split("\n") for part in wrap.wrap(line) or [""]]


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Show a message on the terminal while the block runs; silent if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.text import Text

    # Not as a string, which is markup: a name may have brackets.
    with console(stderr=True).status(Text(doing)):
        yield
