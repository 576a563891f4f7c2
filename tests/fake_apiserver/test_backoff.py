"""Delays between retries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.kube_client import ThrottledError, UnavailableError
from dra_agent.retry import URGENT_RETRY_S, Backoff


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=200))
def test_delays_grow_up_to_a_limit(draws: list[float]) -> None:
    numbers = iter(draws)
    backoff = Backoff(first=0.5, longest=30, jitter=lambda: next(numbers))
    for count in range(len(draws)):
        step = min(30, 0.5 * 2.0 ** min(count, 10))
        assert step / 2 <= backoff.delay(UnavailableError("x")) <= step
    backoff.reset()
    assert backoff.failures == 0


@pytest.mark.parametrize(("retry_after", "minimum", "maximum"), [(7.0, 7.0, 7.7), (0.0, 0.25, 0.5), (1e9, 30.0, 33.0)])
def test_retry_after_is_the_minimum_delay(retry_after: float, minimum: float, maximum: float) -> None:
    for _ in range(50):
        assert minimum <= Backoff().delay(ThrottledError("x", retry_after=retry_after)) <= maximum


def test_an_urgent_activity_retries_within_a_second_whatever_the_server_requests() -> None:
    urgent = True
    backoff = Backoff(first=0.25, urgent=lambda: urgent)
    assert backoff.delay(ThrottledError("x", retry_after=300.0)) <= 0.25
    assert all(backoff.delay(ThrottledError("x", retry_after=300.0)) <= URGENT_RETRY_S for _ in range(20))
    urgent = False
    assert backoff.delay(ThrottledError("x", retry_after=20.0)) >= 20.0


def test_two_agents_retry_at_different_times() -> None:
    assert len({Backoff(first=10).delay() for _ in range(20)}) > 15


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=50))
def test_list_delays_cover_the_whole_range(draws: list[float]) -> None:
    numbers = iter(draws)
    backoff = Backoff(first=5, longest=30, spread=1.0, jitter=lambda: next(numbers))
    for count, draw in enumerate(draws):
        assert backoff.delay() == pytest.approx(min(30, 5 * 2.0 ** min(count, 10)) * draw)
