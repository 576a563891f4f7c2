"""Values that are slow to read: the last one is shown with its age."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dra_agent.errors import RetryableError
from dra_cluster.page import last_known
from dra_cluster.page.last_known import MAX_SHARE, LastKnown
from eventually import DEADLINE_S, eventually


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Source:
    """A value that is read when the gate is open."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def read(self) -> int:
        self.reads += 1
        assert self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return self.reads


@pytest.fixture
def source() -> Iterator[Source]:
    found = Source()
    yield found
    found.gate.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def value(source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> LastKnown[int]:
    monkeypatch.setattr(last_known, "FIRST_WAIT_S", DEADLINE_S)
    monkeypatch.setattr(last_known, "WAIT_S", DEADLINE_S)
    return LastKnown(source.read, interval_s=10, clock=clock)


def test_a_value_is_read_again_when_it_is_old_and_requested(
    value: LastKnown[int], source: Source, clock: Clock
) -> None:
    assert [value.get().value for _ in range(5)] == [1] * 5
    clock.now_s += 9
    assert (value.get().value, value.get().age_s) == (1, 9)
    clock.now_s += 1
    assert (value.get().value, value.get().age_s) == (2, 0)
    clock.now_s += 1000
    assert source.reads == 2, "the value was not requested"


def test_a_source_that_hangs_leaves_the_last_value_with_its_age(
    value: LastKnown[int], source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert value.get().value == 1
    monkeypatch.setattr(last_known, "WAIT_S", 0)
    source.gate.clear()
    clock.now_s += 20
    value.get()
    clock.now_s += 100
    known = value.get()
    assert (known.value, known.age_s, known.reading_s, known.error) == (1, 120, 100, None)
    assert source.reads == 2, "one reading at a time"
    source.gate.set()
    eventually(lambda: value.get().value == 2)


def test_a_source_that_never_responded_has_no_value(
    value: LastKnown[int], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_known, "FIRST_WAIT_S", 0)
    source.gate.clear()
    known = value.get()
    assert (known.value, known.age_s, known.reading_s) == (None, None, 0)


def test_errors_are_reported_next_to_the_last_value(value: LastKnown[int], source: Source, clock: Clock) -> None:
    assert value.get().error is None
    source.error = RetryableError("the API server is away", where="https://a", hint="wait")
    clock.now_s += 10
    known = value.get()
    assert (known.value, known.age_s, known.error) == (1, 10, "https://a: the API server is away; wait")
    source.error = KeyError("x")
    clock.now_s += 10
    assert value.get().error == "internal error: KeyError: 'x'"
    source.error = None
    clock.now_s += 10
    assert (value.get().value, value.get().error) == (4, None)


def test_slow_readings_take_a_part_of_the_time_only(clock: Clock) -> None:
    duration_s = 30.0

    def read() -> float:
        clock.now_s += duration_s
        return clock.now_s

    value = LastKnown(read, interval_s=10, clock=clock)
    first = value.get().value
    clock.now_s += duration_s * (1 / MAX_SHARE - 1) - 1
    assert value.get().value == first
    clock.now_s += 1
    assert value.get().value != first
