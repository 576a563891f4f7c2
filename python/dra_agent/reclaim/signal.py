"""Signals of a node reclaim, their sources, and checks of external texts and times.

Each successful poll of a source reports all its signals; a signal that is missing has ended. A failed poll changes
nothing.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from dra_agent.errors import RetryableError
from dra_agent.reclaim.settings import Treatment

Kind = Literal["hint", "notice", "clear"]
"""hint: the node may be reclaimed. notice: it will be, and soon. clear: the signal is withdrawn."""

_MAX_TEXT_CHARS = 200
_PRINTABLE = frozenset(string.printable) - frozenset("\t\n\r\x0b\x0c")


class Signal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One signal of one source."""

    source: str
    """`aws.spot`, `azure`, `operator`; a source may have several signals, each with its own name."""
    kind: Kind
    event: str
    """The source's id of the event, or the name of the source if it has none."""
    description: str = msgspec.field(name="what")
    """For messages; printable."""
    deadline: datetime | None = None
    """When the node is reclaimed: aware, UTC, by this host's clock. None: not known."""
    sticky: bool = msgspec.field(default=False, name="lasting")
    """The source cannot withdraw it: a missing report means nothing before its deadline."""
    deadline_note: str = msgspec.field(default="", name="doubt")
    """Why the deadline is not the one that was announced, if it is not."""
    once: Literal["", "id", "word"] = ""
    """The event happens once and may end with a boot of the host, so it is recorded across boots. id: `event`
    names this one event. word: `event` names the next one of its kind too, once the source has reported none."""


def treated(signal: Signal | None, treatment: Treatment) -> Signal | None:
    """Return the signal with the configured treatment: dropped, at most a hint, or unchanged."""
    if signal is None or treatment == "ignore":
        return None
    if treatment == "hint" and signal.kind == "notice":
        return msgspec.structs.replace(signal, kind="hint", sticky=False)
    return signal


class SignalSink(Protocol):
    """Receives the reports of sources.

    A protocol, because `SignalTracker`, which implements it, imports this module.
    """

    def observed(self, source: str, signals: Sequence[Signal]) -> None:
        """Record a successful poll: the source has exactly these signals."""

    def failed(self, source: str, why: str) -> None:
        """A failed poll: neither a notice nor the absence of one."""


class SignalSource(Protocol):
    """A source of signals: of a cloud, of a file, of the Node, or of logind."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every `source` that its signals can have."""

    async def run(self, sink: SignalSink) -> None:
        """Poll and report until cancelled."""

    async def released(self) -> None:
        """Every claim of the host was released: an event that the source delays for this host can proceed.

        Repeated while it is true.
        """


@runtime_checkable
class RecallingSource(Protocol):
    """A source with times relative to the first observation, kept over a restart of the agent.

    A protocol, because the service does not import sources: that of Google Cloud implements it.
    """

    def recall(self, signals: Sequence[Signal]) -> None:
        """Restore the signals of an earlier run in this boot; called before `run`."""


class SourceError(RetryableError):
    """A failed poll, with Retry-After in seconds."""

    def __init__(self, description: str, *, where: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(description, where=where)
        self.retry_after = retry_after


def ascii_line(text: str) -> str:
    """Return external text for a log, an Event or an id: printable ASCII on one line, with limited length."""
    kept = "".join(character if character in _PRINTABLE else "?" for character in text.strip())
    return kept if len(kept) <= _MAX_TEXT_CHARS else kept[: _MAX_TEXT_CHARS - 3] + "..."


_AWS = "%d %b %Y %H:%M:%S GMT"
_HTTP = "%a, %d %b %Y %H:%M:%S GMT"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
SKEW = timedelta(seconds=3)
"""Smaller differences of clocks are ignored: the Date header has whole seconds, and responses take time."""


def parse_time(text: str) -> datetime:
    """Read RFC 3339, RFC 1123 ("Mon, 19 Sep 2016 18:29:47 GMT") or AWS's form of it ("21 Jan 2019 09:00:43 GMT").

    Returns an aware time in UTC; ValueError for anything else, also for a time without its zone.
    """
    text = text.strip()
    if len(text) > 64 or not text.isascii():
        raise ValueError("not a time")
    if _RFC3339.fullmatch(text):
        # fromisoformat accepts six digits of a second; more are dropped.
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper())).astimezone(UTC)
    return datetime.strptime(text, _AWS if text[:1].isdigit() else _HTTP).replace(tzinfo=UTC)


def to_local_clock(time: datetime, ahead: timedelta | None) -> datetime:
    """Translate a time of a service whose clock is `ahead` of the host's; out-of-range clocks are ignored."""
    if ahead is None or abs(ahead) < SKEW:
        return time
    try:
        return time - ahead
    except OverflowError:
        return time


class ClampedDeadline(NamedTuple):
    """The deadline of a signal by the host's clock."""

    deadline: datetime
    note: str = ""
    """Why it differs from the announced one; empty if it does not."""
    is_plausible: bool = True
    """False if the announced one is too far away: `deadline` is then that of a source without a time."""


def clamp_deadline(
    announced: datetime, *, ahead: timedelta | None = None, now: datetime, default_lead: timedelta, max_lead: timedelta
) -> ClampedDeadline:
    """Return the effective deadline by the host's clock.

    A deadline that has passed becomes `now`. One further away than `max_lead` is implausible: the notice still counts,
    with the `default_lead` of the source. The note contains the announced time: by the host's clock it would change
    with every poll.
    """
    deadline = to_local_clock(announced, ahead)
    if deadline < now:
        return ClampedDeadline(now, f"the deadline {announced.isoformat()} has passed")
    if deadline - now > max_lead:
        note = f"the deadline {announced.isoformat()} is too far away to be true"
        return ClampedDeadline(now + default_lead, note, is_plausible=False)
    return ClampedDeadline(deadline)
