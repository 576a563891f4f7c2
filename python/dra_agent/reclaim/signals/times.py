"""Times as metadata services write them, set right by the service's own clock, and believed within reason."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_AWS = "%d %b %Y %H:%M:%S GMT"
_HTTP = "%a, %d %b %Y %H:%M:%S GMT"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
SKEW = timedelta(seconds=3)
"""Clocks that differ by less are the same: the Date header has whole seconds, and answers take a while."""


def parse_time(text: str) -> datetime:
    """Read RFC 3339, RFC 1123 ("Mon, 19 Sep 2016 18:29:47 GMT") or AWS's form of it ("21 Jan 2019 09:00:43 GMT").

    Gives an aware time in UTC; ValueError for anything else, also for a time without its zone.
    """
    text = text.strip()
    if len(text) > 64 or not text.isascii():
        raise ValueError("not a time")
    if _RFC3339.fullmatch(text):
        # fromisoformat takes six digits of a second; more say nothing here.
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper())).astimezone(UTC)
    return datetime.strptime(text, _AWS if text[:1].isdigit() else _HTTP).replace(tzinfo=UTC)


def to_local_clock(time: datetime, ahead: timedelta | None) -> datetime:
    """Translate a time of a service whose clock is `ahead` of ours; a clock that leads out of the calendar is none."""
    if ahead is None or abs(ahead) < SKEW:
        return time
    try:
        return time - ahead
    except OverflowError:
        return time


def clamp_deadline(
    announced: datetime, *, ahead: timedelta | None = None, now: datetime, usual: timedelta, most: timedelta
) -> tuple[datetime, str]:
    """Give the deadline to go by, by our clock, and why it is another than the one announced (empty if it is that).

    A deadline that has passed leaves no time at all: it is `now`. One further away than `most` is none that such a
    notice can have: the notice still holds, with the `usual` time that the source gives. The reason names the time as
    it was announced: by our clock it would be another one at each look.
    """
    deadline = to_local_clock(announced, ahead)
    if deadline < now:
        return now, f"the deadline {announced.isoformat()} has passed"
    if deadline - now > most:
        return now + usual, f"the deadline {announced.isoformat()} is too far away to be true"
    return deadline, ""
