from __future__ import annotations

from dra_agent.nvml.client import (
    FIRST_WAIT_S,
    FORGET_AFTER_S,
    HANG_TIMEOUT_S,
    MAX_HANG_TIMEOUT_S,
    MAX_WAIT_S,
    RestartPolicy,
)


def test_the_first_failure_costs_no_wait_and_each_after_it_twice_as_long() -> None:
    patience = RestartPolicy()
    waits = []
    now = 1000.0
    for _ in range(12):
        patience.failed(now)
        waits.append(patience.remaining(now))
        now += waits[-1]
        assert patience.remaining(now) == 0
    assert waits[:4] == [0, FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == MAX_WAIT_S
    patience.failed(now + FORGET_AFTER_S)
    assert patience.remaining(now + FORGET_AFTER_S) == 0


def test_a_hang_is_borne_longer_each_time() -> None:
    patience = RestartPolicy()
    assert patience.tolerates(HANG_TIMEOUT_S - 1, 1000) and not patience.tolerates(HANG_TIMEOUT_S, 1000)
    patience.failed(1000)
    assert patience.tolerates(HANG_TIMEOUT_S, 1001) and not patience.tolerates(2 * HANG_TIMEOUT_S, 1001)
    for _ in range(20):
        patience.failed(1002)
    assert patience.tolerates(MAX_HANG_TIMEOUT_S - 1, 1003) and not patience.tolerates(MAX_HANG_TIMEOUT_S, 1003)
