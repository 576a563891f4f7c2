"""An agent that leads again learns that another one led since, however short that was: it replaces what is left."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_agent.agent.rolling_update import InstanceRegistry, LeadershipState
from eventually import DEADLINE_S, eventually_async

INTERVAL_S = 0.005
ABLE, UNABLE, STOPPING = LeadershipState.ABLE, LeadershipState.UNABLE, LeadershipState.STOPPING


def changes_after(first: InstanceRegistry, events: Callable[[], None]) -> list[bool]:
    """Return what the watch of `first` reports of events between two of its checks."""

    async def watched() -> list[bool]:
        changes: list[bool] = []
        first.watch(changes.append, interval_s=INTERVAL_S)
        events()
        return await eventually_async(lambda: changes)

    return asyncio.run(asyncio.wait_for(watched(), DEADLINE_S))


class EarlierVersion:
    """An instance of a version that publishes its state, and does not record that it leads."""

    def __init__(self, state_dir: Path, order: int) -> None:
        self._handle = os.open(state_dir / "instances" / f"{order:012}-earlier", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._handle, UNABLE)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def report(self, state: LeadershipState) -> None:
        os.ftruncate(self._handle, state)

    def close(self) -> None:
        os.close(self._handle)


@pytest.mark.parametrize("last", [STOPPING, UNABLE, ABLE])
@pytest.mark.parametrize("asks", ["both", "the other", "none"])
def test_a_leader_that_was_none_for_a_moment_is_notified(tmp_path: Path, asks: str, last: LeadershipState) -> None:
    """The other one stops in order, is refused, or is killed, before the next check of the first."""
    first = InstanceRegistry(tmp_path, "first")
    first.report(ABLE)

    def events() -> None:
        other = InstanceRegistry(tmp_path, "other")
        other.report(ABLE)
        assert asks == "none" or other.is_leader()
        assert asks != "both" or not first.is_leader()
        other.report(last)
        other.close()
        assert asks != "both" or first.is_leader()

    assert changes_after(first, events) == [True]
    first.close()


def test_a_leader_that_left_its_file_as_it_was_is_noticed(tmp_path: Path) -> None:
    """As on a file system whose times have a resolution of a second."""
    first, other = InstanceRegistry(tmp_path, "first"), InstanceRegistry(tmp_path, "other")
    first.report(ABLE)
    (path,) = (tmp_path / "instances").glob("*-other")
    before = path.stat()

    def events() -> None:
        other.report(ABLE)
        assert other.is_leader()
        other.report(UNABLE)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert changes_after(first, events) == [True]
    for instance in (first, other):
        instance.close()


@pytest.mark.parametrize("last", [STOPPING, UNABLE, ABLE])
def test_a_leader_of_an_earlier_version_is_noticed(tmp_path: Path, last: LeadershipState) -> None:
    first = InstanceRegistry(tmp_path, "first")
    first.report(ABLE)

    def events() -> None:
        other = EarlierVersion(tmp_path, 2)
        other.report(ABLE)
        other.report(last)
        other.close()

    assert changes_after(first, events) == [True]
    first.close()


@pytest.mark.parametrize("is_earlier_version", [True, False])
def test_an_older_one_that_led_while_this_one_was_refused_is_noticed(tmp_path: Path, is_earlier_version: bool) -> None:
    """Only the file of the one that was refused has changed."""
    elder: EarlierVersion | InstanceRegistry
    if is_earlier_version:
        (tmp_path / "instances").mkdir()
        elder = EarlierVersion(tmp_path, 1)
    else:
        elder = InstanceRegistry(tmp_path, "elder")
    elder.report(ABLE)
    first = InstanceRegistry(tmp_path, "first")
    first.report(ABLE)
    assert first.is_leader()

    def events() -> None:
        first.report(UNABLE)
        first.report(ABLE)

    assert changes_after(first, events) == [True]
    for instance in (elder, first):
        instance.close()


def test_one_that_leads_without_a_break_is_not_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it cannot record that it leads, as on a disk that has become read-only."""
    first, other = InstanceRegistry(tmp_path, "first"), InstanceRegistry(tmp_path, "other")
    first.report(ABLE)
    assert first.is_leader()
    other.report(ABLE)
    assert other.is_leader() and not first.is_leader()
    other.close()

    def read_only(path: Path, size: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async def watched() -> list[bool]:
        changes: list[bool] = []
        checks = 0

        def counted() -> bool:
            nonlocal checks
            checks += 1
            return is_leader()

        is_leader = first.is_leader
        monkeypatch.setattr(first, "is_leader", counted)
        monkeypatch.setattr(os, "truncate", read_only)
        first.watch(changes.append, interval_s=INTERVAL_S)
        await eventually_async(lambda: checks > 5)
        monkeypatch.undo()
        return changes

    assert asyncio.run(asyncio.wait_for(watched(), DEADLINE_S)) == []
    first.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["start", "die", "ask", *LeadershipState])),
        min_size=1,
        max_size=25,
    )
)
def test_each_leader_since_the_last_check_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str | LeadershipState]]
) -> None:
    """After any sequence of events one instance asks if it leads; it is notified if another was the leader."""
    folder = tmp_path_factory.mktemp("state")
    living: dict[int, InstanceRegistry] = {1: InstanceRegistry(folder, "pod-1")}
    first = living[1]
    first.report(ABLE)
    has_led = False

    def events() -> None:
        nonlocal has_led
        for number, event in [*steps, (1, ABLE), *((number, "die") for number in (0, 2))]:
            if event == "start" and number not in living:
                living[number] = InstanceRegistry(folder, f"pod-{number}")
            elif event == "die" and number != 1 and number in living:
                living.pop(number).close()
            elif event == "ask" and number in living:
                has_led = (living[number].is_leader() and number != 1) or has_led
            elif isinstance(event, LeadershipState) and number in living:
                living[number].report(event)
        if not has_led:  # the watch reports something in any case
            other = InstanceRegistry(folder, "last")
            other.report(ABLE)
            other.report(UNABLE)
            other.close()

    try:
        assert changes_after(first, events) == [True]
    finally:
        first.close()
