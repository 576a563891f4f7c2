from __future__ import annotations

from dra_agent.nvml.patience import FIRST_WAIT, FORGOTTEN, HANGS, LONGEST_WAIT, MOST_HANGS, Patience


def test_the_first_failure_costs_no_wait_and_each_after_it_twice_as_long() -> None:
    patience = Patience()
    waits = []
    now = 1000.0
    for _ in range(12):
        patience.failed(now)
        waits.append(patience.left(now))
        now += waits[-1]
        assert patience.left(now) == 0
    assert waits[:4] == [0, FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT]
    assert waits[-1] == LONGEST_WAIT
    patience.failed(now + FORGOTTEN)
    assert patience.left(now + FORGOTTEN) == 0


def test_a_hang_is_borne_longer_each_time() -> None:
    patience = Patience()
    assert patience.bears(HANGS - 1, 1000) and not patience.bears(HANGS, 1000)
    patience.failed(1000)
    assert patience.bears(HANGS, 1001) and not patience.bears(2 * HANGS, 1001)
    for _ in range(20):
        patience.failed(1002)
    assert patience.bears(MOST_HANGS - 1, 1003) and not patience.bears(MOST_HANGS, 1003)
