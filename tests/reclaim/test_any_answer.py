"""Any response of a metadata service yields signals or a SourceError, and signals can be stored and displayed."""

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
from dra_agent.reclaim.signals.aws import AwsSource
from dra_agent.reclaim.signals.azure import AzureSource
from dra_agent.reclaim.signals.gcp import GcpSource
from dra_agent.reclaim.signals.http import MetadataService, Response
from dra_agent.reclaim.state import ReclaimState, apply, dismiss, expire
from dra_agent.reclaim.status import Progress, status_of

LEAD = timedelta(seconds=300)
NOWHERE = "http://127.0.0.1:9"
Poll = Callable[[], Awaitable[Sequence[Signal]]]


class FixedService(MetadataService):
    """Return the same response to every request, except to one for a token."""

    def __init__(self, answer: Response) -> None:
        self.answer = answer

    async def request(self, target: str, *, method: str = "GET", **how: Any) -> Response:
        return Response(200, {}, b"token", self.answer.received) if method == "PUT" else self.answer

    def close(self) -> None:
        pass


def aws(answer: Response) -> list[Poll]:
    source = AwsSource(NOWHERE, lead=LEAD, connect=lambda endpoint: FixedService(answer))
    return [source.spot, source.rebalance, source.autoscaling, source.maintenance]


def azure(answer: Response) -> list[Poll]:
    source = AzureSource(NOWHERE, vm="vm", lead=LEAD, acknowledge=True, connect=lambda endpoint: FixedService(answer))
    return [source.poll]


def gcp(answer: Response) -> list[Poll]:
    source = GcpSource(
        NOWHERE, preemption=LEAD, maintenance=LEAD, lead=LEAD, connect=lambda endpoint: FixedService(answer)
    )
    return list(source.polls.values())


times = st.one_of(
    st.text(max_size=30),
    st.datetimes().map(lambda time: time.strftime("%Y-%m-%dT%H:%M:%SZ")),
    st.datetimes().map(lambda time: time.isoformat()),
    st.datetimes().map(lambda time: time.strftime("%a, %d %b %Y %H:%M:%S GMT")),
    st.datetimes().map(lambda time: time.strftime("%d %b %Y %H:%M:%S GMT")),
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
documents = (
    values | spot | event | st.lists(event, max_size=3) | st.builds(lambda events: {"Events": events}, st.lists(event))
)
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
def test_any_response_yields_signals_or_an_error(
    answer: Response, make_polls: Callable[[Response], list[Poll]]
) -> None:
    async def run() -> None:
        for poll in make_polls(answer):
            try:
                signals = await poll()
            except SourceError as error:
                assert str(error).isprintable() and len(str(error)) < 700
                continue
            assert answer.status in (200, 404)
            check(signals, answer.received)

    asyncio.run(run())


def check(signals: Sequence[Signal], received: datetime) -> None:
    """Signals can be tracked, merged, stored, displayed and dismissed."""
    now = datetime.now(UTC)
    emitted: list[Signal] = []
    tracker = SignalTracker([], emitted.append)
    for _ in range(2):
        for source in {signal.source for signal in signals}:
            tracker.observed(source, [signal for signal in signals if signal.source == source])
    assert len(emitted) <= len(signals)
    state = ReclaimState("b")
    for signal in emitted:
        assert signal.description.isprintable() and signal.event.isprintable() and len(signal.event) <= 200
        if signal.kind == "notice" and signal.deadline is not None:
            assert signal.deadline >= received - timedelta(seconds=60)
        state = apply(state, signal, now)
    decoded = msgspec.json.decode(msgspec.json.encode(state), type=ReclaimState)
    assert decoded == state
    msgspec.json.encode(status_of(state, tracker.source_health(), Progress(), now))
    assert expire(state, now) == state
    assert dismiss(state, now).active == ()
