"""Any sequence of observations and faults: taints stay in order and within limits, end in time, and do not flood."""

from __future__ import annotations

from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_agent.health.issues import Severity
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.model import Inventory
from health.conftest import DRIVER, Clock, gpu, inventory, xid

SETTINGS = HealthSettings(recovery_seconds=60, event_seconds=120, unmonitored="NoSchedule")
CAUSES = ("gpu-lost", "reset-required", "row-remap-failed", "link-down", "unreadable")
MAX_DURATION_S = 120 * 16

observations = st.tuples(st.just("observation"), st.frozensets(st.sampled_from(CAUSES)), st.booleans())
faults = st.tuples(st.just("xid"), st.lists(st.integers(1, 40).map(lambda n: n * 5), max_size=4))
Step = tuple[Literal["observation"], frozenset[str], bool] | tuple[Literal["xid"], list[int]]
steps = st.lists(st.tuples(st.integers(0, 400), observations | faults), max_size=60)


def published(found: Inventory) -> tuple[object, ...]:
    return tuple(found.devices[0].taints)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_any_history(history: list[tuple[int, Step]]) -> None:
    clock = Clock()
    watched = Monitor(SETTINGS, DRIVER, None, clock)
    shown = inventory(gpu())
    found = watched.observe(shown)
    times: dict[str, str | None] = {}
    signs = changes = 0
    for seconds, step in history:
        clock.now += seconds
        before = published(found)
        if step[0] == "observation":
            _, causes, unmonitored = step
            signs += len(causes) + bool(unmonitored)
            shown = inventory(gpu(0, *sorted(causes), health="unmonitored" if unmonitored else "healthy"))
            found = watched.observe(shown)
            present = {taint.key.partition("/")[2] for taint in found.devices[0].taints}
            assert causes <= present or len(present) == 16
        else:
            signs += len(step[1])
            found = watched.record_events([xid(number) for number in step[1]], shown)
        changes += published(found) != before
        spells = watched.active_issues("gpu-0")
        severities = [spell.cause.severity for spell in spells]
        assert severities == sorted(severities, reverse=True)
        taints = found.devices[0].taints
        assert len(taints) <= 16
        assert len({taint.key for taint in taints}) == len(taints)
        order = [taint.effect for taint in taints]
        assert order == sorted(order), "NoExecute first: the fatal ones"
        now = {taint.key: taint.time_added for taint in taints}
        for key in now.keys() & times.keys():
            assert now[key] == times[key], "the time of a taint never changes while it lasts"
        times = now
        assert (found.devices[0].health == "unhealthy") == any(level > Severity.NOTICE for level in severities)
    # Each change has a sign that began or ended it: observations and silence alone write nothing.
    assert changes <= 2 * signs
    found = watched.observe(inventory(gpu()))
    clock.now += MAX_DURATION_S
    assert watched.observe(inventory(gpu())) == inventory(gpu()), "everything ends"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=400), st.integers(1, 30))
def test_a_flapping_device_is_written_rarely(signs: list[bool], every: int) -> None:
    """However it flaps: two writes for each time that it stayed well for the whole of a growing pause."""
    clock = Clock()
    watched = Monitor(SETTINGS, DRIVER, None, clock)
    found = watched.observe(inventory(gpu()))
    writes, quiet, pauses, need = 0, 0.0, 0, 60.0
    for sign in signs:
        clock.now += every
        quiet = 0.0 if sign else quiet + every
        after = watched.observe(inventory(gpu(0, *(["link-down"] if sign else []))))
        if published(found) and not published(after):
            assert quiet >= need - every
            pauses, need = pauses + 1, min(need * 2, 960.0)
        writes += published(after) != published(found)
        found = after
    assert writes <= 2 * pauses + 1
    assert pauses <= 1 + len(signs) * every / 60
