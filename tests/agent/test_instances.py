"""Which agent on a shared state directory is the newest, and which is the leader."""

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

from dra_agent.agent.leadership import Leadership
from dra_agent.agent.rolling_update import EXPIRE_AFTER_S, InstanceRegistry, LeadershipState, StateLock
from dra_agent.errors import PermanentError, RetryableError, UsageError
from eventually import eventually_async


def test_the_last_started_instance_is_the_newest(tmp_path: Path) -> None:
    old = InstanceRegistry(tmp_path, "uid-old")
    assert old.is_newest() and old.others() == []
    new = InstanceRegistry(tmp_path, "uid-new")
    assert new.is_newest() and not old.is_newest()
    assert old.others() == ["uid-new"] and new.others() == ["uid-old"]
    new.close()
    assert old.is_newest()
    old.close()


def test_a_restarted_container_keeps_the_age_of_its_pod(tmp_path: Path) -> None:
    old, new = InstanceRegistry(tmp_path, "old"), InstanceRegistry(tmp_path, "new")
    old.close()
    restarted = InstanceRegistry(tmp_path, "old")
    assert new.is_newest() and not restarted.is_newest()
    with pytest.raises(PermanentError, match="of this pod lives"):
        InstanceRegistry(tmp_path, "old")


def test_dead_instances_are_removed_after_a_while(tmp_path: Path) -> None:
    for name in ("long-dead", "just-dead"):
        InstanceRegistry(tmp_path, name).close()
    old_time = time.time() - EXPIRE_AFTER_S - 1
    os.utime(next((tmp_path / "instances").glob("*-long-dead")), (old_time, old_time))
    living = InstanceRegistry(tmp_path, "living")
    (tmp_path / "instances" / "notes.txt").write_text("not an instance")
    assert {path.name.partition("-")[2] for path in (tmp_path / "instances").glob("0*")} == {"just-dead", "living"}
    assert living.is_newest() and living.others() == []


def test_the_death_of_an_instance_is_noticed(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from dra_agent.agent.rolling_update import InstanceRegistry
        kept = InstanceRegistry(Path(sys.argv[1]), "other")
        print("ready", flush=True)
        time.sleep(60)
    """)
    first = InstanceRegistry(tmp_path, "first")

    async def kill_and_watch(process: subprocess.Popen[str]) -> list[bool]:
        changes: list[bool] = []
        first.watch(changes.append, interval_s=0.01)
        process.kill()
        process.wait()
        return await eventually_async(lambda: changes)

    with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert not first.is_newest()
        assert asyncio.run(asyncio.wait_for(kill_and_watch(process), 60)) == [True]


def test_a_change_of_the_leader_is_known_while_the_disk_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = InstanceRegistry(tmp_path, "first")
    other = InstanceRegistry(tmp_path, "other")
    leadership = Leadership(instances)
    assert not leadership.is_leader()

    async def watched() -> list[bool]:
        answers: list[bool] = []

        def changed(leads: bool) -> None:
            monkeypatch.setattr(instances, "is_leader", unreadable)
            answers.append(leadership.is_leader())

        leadership.watch(changed)
        other.close()
        return await eventually_async(lambda: answers)

    def unreadable() -> bool:
        raise RetryableError("cannot be listed")

    assert asyncio.run(asyncio.wait_for(watched(), 60)) == [True]
    instances.close()


@pytest.mark.parametrize("uid", ["", "../up", "a b", "-x", "x" * 200])
def test_an_invalid_uid_is_refused(tmp_path: Path, uid: str) -> None:
    with pytest.raises(UsageError, match="--pod-uid"):
        InstanceRegistry(tmp_path, uid)


def test_an_unusable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "instances").write_text("a file")
    with pytest.raises(RetryableError, match="instances"):
        InstanceRegistry(tmp_path, "a")


@pytest.mark.parametrize("first, second", [(False, True), (True, False)])
def test_only_sharing_agents_can_run_at_the_same_time(tmp_path: Path, first: bool, second: bool) -> None:
    lock = StateLock(tmp_path, shared=first)
    with pytest.raises(PermanentError, match=rf"another agent \(pid {os.getpid()}\) runs on this state directory"):
        StateLock(tmp_path, shared=second)
    lock.close()
    first_lock, second_lock = StateLock(tmp_path, shared=True), StateLock(tmp_path, shared=True)
    first_lock.close()
    with pytest.raises(PermanentError):
        StateLock(tmp_path)
    second_lock.close()


def leaders(*instances: InstanceRegistry) -> list[int]:
    return [index for index, instance in enumerate(instances) if instance.is_leader()]


def test_an_able_instance_leads_until_a_newer_one_is_able(tmp_path: Path) -> None:
    old = InstanceRegistry(tmp_path, "old")
    assert old.is_leader(), "alone it leads before its first report"
    old.report(LeadershipState.ABLE)
    new = InstanceRegistry(tmp_path, "new")
    assert leaders(old, new) == [0] and new.is_newest() and new.has_able_elder()
    new.report(LeadershipState.ABLE)
    assert leaders(old, new) == [1]
    new.report(LeadershipState.UNABLE)
    assert leaders(old, new) == [0], "an earlier ability does not count"
    old.report(LeadershipState.UNABLE)
    assert leaders(old, new) == [1] and not new.has_able_elder(), "the newest leads where no instance is able"


def test_a_stopping_instance_leads_only_if_it_is_alone(tmp_path: Path) -> None:
    old, new = InstanceRegistry(tmp_path, "old"), InstanceRegistry(tmp_path, "new")
    old.report(LeadershipState.ABLE)
    old.report(LeadershipState.STOPPING)
    assert leaders(old, new) == [1]
    new.close()
    assert old.is_leader()


def test_a_restarted_container_must_report_its_ability_again(tmp_path: Path) -> None:
    old, new = InstanceRegistry(tmp_path, "old"), InstanceRegistry(tmp_path, "new")
    for instance in (old, new):
        instance.report(LeadershipState.ABLE)
    new.close()
    restarted = InstanceRegistry(tmp_path, "new")
    assert leaders(old, restarted) == [0]


def test_a_version_without_reports_leads_at_once(tmp_path: Path) -> None:
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
def test_exactly_one_instance_leads_and_is_able_if_any_is(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str | LeadershipState]]
) -> None:
    folder = tmp_path_factory.mktemp("state")
    living: dict[int, InstanceRegistry] = {}
    reported: dict[int, LeadershipState] = {}
    try:
        for number, event in steps:
            if event == "start" and number not in living:
                living[number], reported[number] = InstanceRegistry(folder, f"pod-{number}"), LeadershipState.UNABLE
            elif event == "die" and number in living:
                living.pop(number).close()
            elif isinstance(event, LeadershipState) and number in living:
                living[number].report(event)
                reported[number] = event
            if living:
                (leader,) = [number for number, instance in living.items() if instance.is_leader()]
                assert reported[leader] is max(reported[other] for other in living)
    finally:
        for instance in living.values():
            instance.close()
