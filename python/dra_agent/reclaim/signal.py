"""What a source says of the host's end, and what a source is.

A source tells all that it sees each time it looks well; what it no longer names has ended. A failed look says nothing.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

import msgspec

from dra_agent.errors import RetryableError
from dra_agent.reclaim.settings import Treatment

Kind = Literal["hint", "notice", "clear"]
"""hint: the host may be taken. notice: it will be, and soon. clear: what was said before no longer holds."""

_LONGEST_TEXT = 200
_PRINTABLE = frozenset(string.printable) - frozenset("\t\n\r\x0b\x0c")


class Signal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing that one source says."""

    source: str
    """`aws.spot`, `azure`, `operator`; a source may have several voices, each with its own name."""
    kind: Kind
    event: str
    """The source's id of it, or its own name where it has none."""
    what: str
    """For people; printable."""
    deadline: datetime | None = None
    """When the host is taken: aware, UTC, by this host's clock. None: not known."""
    sticky: bool = msgspec.field(default=False, name="lasting")
    """The source cannot take it back: silence about it means nothing before its deadline."""
    deadline_note: str = msgspec.field(default="", name="doubt")
    """Why the deadline is not the one that was announced, if it is not."""
    once: Literal["", "id", "word"] = ""
    """The event happens once and a boot of the host can be its end, so that it is remembered across boots. id: `event`
    names this one event. word: `event` names the next one of its kind too, once the source has reported none."""


def treated(reading: Signal | None, treatment: Treatment) -> Signal | None:
    """The reading as the configuration has it count: not at all, as a hint at most, or as it is."""
    if reading is None or treatment == "ignore":
        return None
    if treatment == "hint" and reading.kind == "notice":
        return msgspec.structs.replace(reading, kind="hint", sticky=False)
    return reading


class SignalSink(Protocol):
    """To whom sources report."""

    def seen(self, source: str, readings: Sequence[Signal]) -> None:
        """A good look: these readings hold, and no others of this source."""

    def failed(self, source: str, why: str) -> None:
        """A look that says nothing, neither that there is a notice nor that there is none."""


class SignalSource(Protocol):
    """Something that knows when the host is taken."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every `source` that its readings can have."""

    async def run(self, watch: SignalSink) -> None:
        """Look and report until cancelled."""

    async def released(self) -> None:
        """Every claim of the host was released: whatever the source holds back for this host need not wait longer.

        Said again and again while it is so.
        """


@runtime_checkable
class RecallingSource(Protocol):
    """A source that counts from when something was first seen, over a restart of the agent."""

    def recall(self, readings: Sequence[Signal]) -> None:
        """What an earlier run of the agent was told in this boot; called before `run`."""


class SourceError(RetryableError):
    """A look that failed, with the seconds that the other side asks to wait for."""

    def __init__(self, what: str, *, where: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(what, where=where)
        self.retry_after = retry_after


def printable(text: str) -> str:
    """Text from outside as it may stand in a log, an Event or an id: ASCII on one line, and not without end."""
    kept = "".join(character if character in _PRINTABLE else "?" for character in text.strip())
    return kept if len(kept) <= _LONGEST_TEXT else kept[: _LONGEST_TEXT - 3] + "..."
