"""Output of commands: tables, JSON and YAML, and progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from dra_agent.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult
import argparse
from collections.abc import Callable, Iterable, Sequence

from dra_agent.printable import is_printable, json_printable


class Guarded:
    """A stream that escapes control characters and hands the rest to another one."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        """Write the text and return its number of characters."""
        self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below; closing this one does not close that one."""
        self.raw.flush()

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
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

    class Escaped:
        """What a console prints, its text escaped and its own control codes unchanged."""

        def __init__(self, inner: RenderableType) -> None:
            self._inner = inner

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for segment in console.render(self._inner, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    class Hook:
        """Called by the console with everything that it is about to print."""

        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [cast("ConsoleRenderable", Escaped(renderable)) for renderable in renderables]

    stream: Any = sys.stderr if stderr else sys.stdout
    result = Console(file=stream.raw if isinstance(stream, Guarded) else stream, width=width, highlight=False)
    result.push_render_hook(cast("Any", Hook()))
    return result


def _guard(stream: TextIO) -> TextIO:
    return stream if isinstance(cast("Any", stream), Guarded) else cast("TextIO", Guarded(stream))


FORMATS = ("table", "wide", "name", "json", "yaml")


def add_output_flag(parser: argparse.ArgumentParser) -> None:
    """Add `-o table|wide|name|json|yaml`; `wide` and `name` are tables with another layout."""
    _layout.name = "table"
    parser.add_argument(
        "-o",
        "--output",
        action=_OutputAction,
        choices=FORMATS,
        default="table",
        help="output format: wide is a table with every column, name prints names only",
    )


class _Layout:
    """How tables of this command are laid out."""

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


def emit(value: Any, output: str) -> None:
    """Print a JSON-like value as JSON or YAML."""
    import msgspec

    if output == "json":
        text = json_printable(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    else:
        import yaml

        plain = msgspec.json.decode(msgspec.json.encode(value))
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
        if not is_printable(text):
            # In ASCII every string with such a character is quoted and escaped, and reads as the same value.
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=120).rstrip("\n")
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


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    optional: Sequence[str] = (),
    named: Callable[[Sequence[object]], str] | None = None,
) -> None:
    """Print rows under upper-case headings; None becomes a dash. No cell is folded or cut.

    Into a file or a pipe every row is one line of all columns, three spaces between them. On a terminal the columns
    that are `optional` are left out, the first one first, until the rest fits, unless `-o wide` asks for all of them,
    and a cell may have several lines. With `-o name` the names of rows are printed: the first column, or `named`.
    """
    listed = list(rows)
    if _layout.name == "name":
        for row in listed:
            print(named(row) if named is not None else row[0])
        return
    if title is not None:
        print(printable(title))
    on_terminal = is_terminal()
    lines = [["-" if cell is None or cell == "" else printable(str(cell)) for cell in row] for row in listed]
    if not on_terminal:
        lines = [[", ".join(cell.split("\n")) for cell in row] for row in lines]
    kept = list(range(len(columns)))
    width = console().width
    for name in optional if on_terminal and _layout.name != "wide" else ():
        if _width(columns, lines, kept) <= width:
            break
        kept = [index for index in kept if columns[index] != name]
    _print_rows([columns[index].upper() for index in kept], [[row[index] for index in kept] for row in lines])


_GAP = "   "


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    return sum(_column_width(columns[index], [row[index] for row in rows]) + len(_GAP) for index in kept) - len(_GAP)


def _column_width(heading: str, cells: Iterable[str]) -> int:
    return max([len(heading), *(len(line) for cell in cells for line in cell.split("\n"))])


def _print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.text import Text

    widths = [_column_width(heading, [row[index] for row in rows]) for index, heading in enumerate(headings)]

    def line(cells: Sequence[str]) -> str:
        return _GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    sys.stdout.flush()
    console().print(Text(line(headings), style="bold"), soft_wrap=True)
    for row in rows:
        parts = [cell.split("\n") for cell in row]
        for number in range(max(map(len, parts), default=0)):
            print(line([part[number] if number < len(part) else "" for part in parts]))


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Show a message on the terminal while the block runs; silent if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(printable(doing)):
        yield
