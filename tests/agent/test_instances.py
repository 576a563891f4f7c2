"""Which of the agents on one state directory is the newest, however they come and go."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_agent.agent.rolling_update import EXPIRE_AFTER_S, InstanceRegistry, LeadershipState, StateLock
from dra_agent.errors import PermanentError, RetryableError, UsageError
from eventually import eventually_async


def test_the_last_that_came_is_the_newest_until_it_goes(tmp_path: Path) -> None:
    old = InstanceRegistry(tmp_path, "uid-old")
    assert old.is_newest() and old.others() == []
    new = InstanceRegistry(tmp_path, "uid-new")
    assert new.is_newest() and not old.is_newest()
    assert old.others() == ["uid-new"] and new.others() == ["uid-old"]
    new.close()
    assert old.is_newest()
    old.close()


def test_a_container_that_restarts_is_as_old_as_its_pod(tmp_path: Path) -> None:
    old, new = InstanceRegistry(tmp_path, "old"), InstanceRegistry(tmp_path, "new")
    old.close()
    again = InstanceRegistry(tmp_path, "old")
    assert new.is_newest() and not again.is_newest()
    with pytest.raises(PermanentError, match="of this pod lives"):
        InstanceRegistry(tmp_path, "old")


def test_the_dead_are_forgotten_after_a_while(tmp_path: Path) -> None:
    for name in ("long-dead", "just-dead"):
        InstanceRegistry(tmp_path, name).close()
    before = time.time() - EXPIRE_AFTER_S - 1
    os.utime(next((tmp_path / "instances").glob("*-long-dead")), (before, before))
    living = InstanceRegistry(tmp_path, "living")
    (tmp_path / "instances" / "notes.txt").write_text("not an instance")
    assert {path.name.partition("-")[2] for path in (tmp_path / "instances").glob("0*")} == {"just-dead", "living"}
    assert living.is_newest() and living.others() == []


def test_death_needs_no_word(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from dra_agent.agent.rolling_update import InstanceRegistry
        kept = InstanceRegistry(Path(sys.argv[1]), "other")
        print("ready", flush=True)
        time.sleep(60)
    """)
    first = InstanceRegistry(tmp_path, "first")

    async def follow(process: subprocess.Popen[str]) -> list[bool]:
        told: list[bool] = []
        first.watch(told.append, every=0.01)
        process.kill()
        process.wait()
        return await eventually_async(lambda: told)

    with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert not first.is_newest()
        assert asyncio.run(asyncio.wait_for(follow(process), 60)) == [True]


@pytest.mark.parametrize("uid", ["", "../up", "a b", "-x", "x" * 200])
def test_a_uid_that_cannot_be_a_name_is_refused(tmp_path: Path, uid: str) -> None:
    with pytest.raises(UsageError, match="--pod-uid"):
        InstanceRegistry(tmp_path, uid)


def test_a_directory_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "instances").write_text("a file")
    with pytest.raises(RetryableError, match="instances"):
        InstanceRegistry(tmp_path, "a")


@pytest.mark.parametrize("first, second", [(False, True), (True, False)])
def test_only_agents_that_all_share_live_together(tmp_path: Path, first: bool, second: bool) -> None:
    held = StateLock(tmp_path, shared=first)
    with pytest.raises(PermanentError, match=rf"another agent \(pid {os.getpid()}\) runs on this state directory"):
        StateLock(tmp_path, shared=second)
    held.close()
    one, other = StateLock(tmp_path, shared=True), StateLock(tmp_path, shared=True)
    one.close()
    with pytest.raises(PermanentError):
        StateLock(tmp_path)
    other.close()


def leaders(*instances: InstanceRegistry) -> list[int]:
    return [at for at, one in enumerate(instances) if one.is_leader()]


def test_the_one_that_can_write_leads_until_a_newer_one_can(tmp_path: Path) -> None:
    old = InstanceRegistry(tmp_path, "old")
    assert old.is_leader(), "alone it leads before it has shown anything"
    old.report(LeadershipState.ABLE)
    new = InstanceRegistry(tmp_path, "new")
    assert leaders(old, new) == [0] and new.is_newest() and new.has_able_elder()
    new.report(LeadershipState.ABLE)
    assert leaders(old, new) == [1]
    new.report(LeadershipState.UNABLE)
    assert leaders(old, new) == [0], "what it could once does not count"
    old.report(LeadershipState.UNABLE)
    assert leaders(old, new) == [1] and not new.has_able_elder(), "the newest tries where none can"


def test_one_that_stops_leads_only_where_no_other_lives(tmp_path: Path) -> None:
    old, new = InstanceRegistry(tmp_path, "old"), InstanceRegistry(tmp_path, "new")
    old.report(LeadershipState.ABLE)
    old.report(LeadershipState.STOPPING)
    assert leaders(old, new) == [1]
    new.close()
    assert old.is_leader()


def test_a_container_that_restarts_has_to_show_again_that_it_can_write(tmp_path: Path) -> None:
    old, new = InstanceRegistry(tmp_path, "old"), InstanceRegistry(tmp_path, "new")
    for one in (old, new):
        one.report(LeadershipState.ABLE)
    new.close()
    again = InstanceRegistry(tmp_path, "new")
    assert leaders(old, again) == [0]


def test_a_version_that_reports_nothing_leads_as_soon_as_it_lives(tmp_path: Path) -> None:
    old = InstanceRegistry(tmp_path, "old")
    old.report(LeadershipState.ABLE)
    other = InstanceRegistry(tmp_path, "other")
    (path,) = (tmp_path / "instances").glob("*-other")
    os.truncate(path, 0)
    assert not old.is_leader()
    other.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["start", "die", *LeadershipState])), min_size=1, max_size=25
    )
)
def test_exactly_one_leads_and_it_can_write_where_any_can(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str | LeadershipState]]
) -> None:
    folder = tmp_path_factory.mktemp("state")
    living: dict[int, InstanceRegistry] = {}
    reported: dict[int, LeadershipState] = {}
    try:
        for who, what in steps:
            if what == "start" and who not in living:
                living[who], reported[who] = InstanceRegistry(folder, f"pod-{who}"), LeadershipState.UNABLE
            elif what == "die" and who in living:
                living.pop(who).close()
            elif isinstance(what, LeadershipState) and who in living:
                living[who].report(what)
                reported[who] = what
            if living:
                (leader,) = [who for who, one in living.items() if one.is_leader()]
                assert reported[leader] is max(reported[other] for other in living)
    finally:
        for one in living.values():
            one.close()
