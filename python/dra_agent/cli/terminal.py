"""Standard output and standard error of commands: control characters escaped, and progress on a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from dra_agent.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


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


def is_terminal() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout.isatty()


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
