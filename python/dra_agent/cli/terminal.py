"""The border between a command and its standard streams: whatever is printed passes `printable`.

`rich` writes escape sequences of its own: its consoles come from `console()`, which lets those through and escapes what
they are given to print.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from dra_agent.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult


class Guarded:
    """A stream that escapes control characters and hands the rest to another one."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        """Write it; gives the number of characters that it was given."""
        self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below; closing this one leaves that one open."""
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
        """What a console prints, its text escaped and its own control codes left as they are."""

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
    made = Console(file=stream.raw if isinstance(stream, Guarded) else stream, width=width, highlight=False)
    made.push_render_hook(cast("Any", Hook()))
    return made


def _guard(stream: TextIO) -> TextIO:
    return stream if isinstance(cast("Any", stream), Guarded) else cast("TextIO", Guarded(stream))
