"""Whatever a metadata service answers: a look gives readings or a SourceError, and readings can be kept and shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from dra_agent.reclaim.signal import Signal, SourceError
from dra_agent.reclaim.signal_tracker import SignalTracker
from dra_agent.reclaim.signals.aws import AwsSource, Session
from dra_agent.reclaim.signals.azure import AzureSource
from dra_agent.reclaim.signals.gcp import GcpSource
from dra_agent.reclaim.signals.http import Response
from dra_agent.reclaim.state import ReclaimState, apply, dismiss, expire
from dra_agent.reclaim.status import Progress, status_of

LEAD = timedelta(seconds=300)
NOWHERE = "http://127.0.0.1:9"
Look = Callable[[], Awaitable[Sequence[Signal]]]


class Service:
    """Answers every question with one and the same answer."""

    def __init__(self, answer: Response) -> None:
        self.answer = answer

    async def request(self, target: str, **how: Any) -> Response:
        return self.answer

    def close(self) -> None:
        pass


def aws(answer: Response) -> list[Look]:
    source = AwsSource(NOWHERE, lead=LEAD)
    source._session = Session(lambda: Service(answer))  # type: ignore[arg-type, return-value]
    source._session._token, source._session._until = "token", float("inf")
    return [source.spot, source.rebalance, source.autoscaling, source.maintenance]


def azure(answer: Response) -> list[Look]:
    source = AzureSource(NOWHERE, vm="vm", lead=LEAD, acknowledge=True)
    source._service = Service(answer)  # type: ignore[assignment]
    return [source.poll]


def gcp(answer: Response) -> list[Look]:
    source = GcpSource(NOWHERE, preemption=LEAD, maintenance=LEAD, lead=LEAD)
    for value in source._values.values():
        value._service = Service(answer)  # type: ignore[assignment]
    return [value.poll for value in source._values.values()]


times = st.one_of(
    st.text(max_size=30),
    st.datetimes().map(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ")),
    st.datetimes().map(lambda t: t.isoformat()),
    st.datetimes().map(lambda t: t.strftime("%a, %d %b %Y %H:%M:%S GMT")),
    st.datetimes().map(lambda t: t.strftime("%d %b %Y %H:%M:%S GMT")),
    st.sampled_from(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", ""]),
)
words = st.sampled_from(["terminate", "stop", "hibernate", "Preempt", "Reboot", "Started", "vm", "TRUE", "é\n"])
FIELDS = ("action", "time", "noticeTime", "NotBefore", "Code", "EventId", "State", "Events", "EventType", "EventStatus")
keys = st.sampled_from((*FIELDS, "Resources", "EventSource", "x"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | times | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=8),
    max_leaves=12,
)
spot = st.fixed_dictionaries({"action": words, "time": times})
event = st.fixed_dictionaries(
    {"EventId": st.text(max_size=5), "EventType": words, "EventStatus": words, "Resources": st.just(["vm"])},
    optional={"NotBefore": times, "EventSource": words, "State": words, "Code": words},
)
documents = values | spot | event | st.lists(event, max_size=3) | st.builds(lambda e: {"Events": e}, st.lists(event))
bodies = st.binary(max_size=60) | documents.map(lambda value: json.dumps(value).encode()) | words.map(str.encode)
headers = st.dictionaries(
    st.sampled_from(["date", "etag", "metadata-flavor", "retry-after", "content-type"]),
    times | st.sampled_from(["Google", "google", "abc", "1e9", "-1", "99999999999999999999"]),
)
statuses = st.sampled_from([200, 200, 200, 204, 301, 400, 401, 403, 404, 429, 500, 503])
answers = st.builds(
    lambda status, headers, body: Response(status, headers, body, datetime.now(UTC)), statuses, headers, bodies
)


@given(answers, st.sampled_from([aws, azure, gcp]))
@example(
    Response(
        200,
        {"date": "Fri, 31 Dec 9999 23:59:59 GMT"},
        b'{"action":"stop","time":"0001-01-01T00:00:00Z"}',
        datetime.now(UTC),
    ),
    aws,
)
def test_any_answer_is_a_reading_or_unknown(answer: Response, make: Callable[[Response], list[Look]]) -> None:
    async def play() -> None:
        for poll in make(answer):
            try:
                readings = await poll()
            except SourceError as error:
                assert str(error).isprintable() and len(str(error)) < 700
                continue
            assert answer.status in (200, 404)
            check(readings, answer.received)

    asyncio.run(play())


def check(readings: Sequence[Signal], received: datetime) -> None:
    """Readings can be told, merged, written, shown and ended."""
    now = datetime.now(UTC)
    told: list[Signal] = []
    picture = SignalTracker([], told.append)
    for _ in range(2):
        for source in {reading.source for reading in readings}:
            picture.observed(source, [reading for reading in readings if reading.source == source])
    assert len(told) <= len(readings)
    state = ReclaimState("b")
    for reading in told:
        assert reading.what.isprintable() and reading.event.isprintable() and len(reading.event) <= 200
        if reading.kind == "notice" and reading.deadline is not None:
            assert reading.deadline >= received - timedelta(seconds=60)
        state = apply(state, reading, now)
    kept = msgspec.json.decode(msgspec.json.encode(state), type=ReclaimState)
    assert kept == state
    msgspec.json.encode(status_of(state, picture.source_health(), Progress(), now))
    assert expire(state, now) == state
    assert dismiss(state, now).active == ()
