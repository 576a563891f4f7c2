"""An agent of a rolling update that is stopped or hangs loses its rank, and notices it when it continues."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from agent.conftest import AgentProcess
from agent.test_kubernetes_mode import kubernetes
from agent.test_rolling_update import NEW, OLD, taint_writers, tainted
from dra_agent.agent.beats import BEAT_TIMEOUT_S
from dra_agent.agent.rolling_update import InstanceRegistry, LeadershipState
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi

__all__ = ["kubernetes"]

ABLE = LeadershipState.ABLE


class Clock:
    """Seconds since the boot, which the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pair(folder: Path, clock: Clock) -> tuple[InstanceRegistry, InstanceRegistry]:
    """Return two instances that can write; the second leads."""
    old, new = (InstanceRegistry(folder, name, clock=clock) for name in ("old", "new"))
    for instance in (old, new):
        instance.report(ABLE)
    assert new.is_leader() and not old.is_leader()
    return old, new


def test_a_leader_without_a_beat_loses_and_notices_it(tmp_path: Path) -> None:
    clock = Clock()
    old, new = pair(tmp_path, clock)
    clock.now += BEAT_TIMEOUT_S - 0.5
    old.beat()
    assert new.is_leader() and not old.is_leader() and new.is_newest(), "a beat may be a few seconds late"
    clock.now += 1.0
    assert old.is_leader() and old.is_newest() and not old.has_able_elder()
    assert not new.is_leader() and not new.is_newest(), "the one that continues knows that it has lost"
    new.beat()
    assert new.is_leader() and not old.is_leader()


def test_one_leads_where_no_instance_beats(tmp_path: Path) -> None:
    """As after a suspension of the host, or on a disk that has become read-only."""
    clock = Clock()
    old, new = pair(tmp_path, clock)
    clock.now += 3600.0
    assert new.is_leader() and not old.is_leader()
    old.beat()
    assert old.is_leader() and not new.is_leader()


def test_an_instance_of_a_version_without_beats_keeps_its_rank(tmp_path: Path) -> None:
    clock = Clock()
    old, new = pair(tmp_path, clock)
    for path in (tmp_path / "instances").glob(".beat-2"):
        path.unlink()
    clock.now += 3600.0
    old.beat()
    assert new.is_leader() and not old.is_leader()


def test_a_beat_of_an_earlier_boot_does_not_count(tmp_path: Path) -> None:
    clock = Clock()
    old, new = pair(tmp_path, clock)
    clock.now = 10.0
    old.beat()
    assert new.is_leader() and not old.is_leader(), "its beat is from a later time than now, so its age is not known"


def test_one_that_led_before_it_was_stopped_is_notified(tmp_path: Path) -> None:
    clock = Clock()
    old, new = pair(tmp_path, clock)

    async def watched() -> list[bool]:
        changes: list[bool] = []
        new.start()
        new.watch(changes.append, interval_s=0.005)
        clock.now += BEAT_TIMEOUT_S + 1  # it is stopped for so long
        old.beat()
        assert old.is_leader()
        return await eventually_async(lambda: changes)

    assert asyncio.run(asyncio.wait_for(watched(), DEADLINE_S)) == [True]


def test_the_other_agent_acts_while_the_leader_is_stopped(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, tmp_path: Path
) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    fake_api.tokens = {"old", "new"}
    notice, config = tmp_path / "notice", tmp_path / "config.toml"
    config.write_text(f'[reclaim]\nfile = "{notice}"\ncloud = "none"\nlogind = "off"\n')

    def run(uid: str, name: str) -> AgentProcess:
        credentials = fake_api.kubeconfig(tmp_path / name, token=name)
        return kubernetes("--pod-uid", uid, "--config", str(config), "--kubeconfig", str(credentials)).ready()

    old = run(OLD, "old")
    fake_api.wait(lambda: bool(fake_api.objects("resourceslices")))
    new = run(NEW, "new")
    old.wait_for("another agent leads now")
    led = new.log_text().count("this agent leads now")
    new.process.send_signal(signal.SIGSTOP)
    try:
        notice.touch()
        fake_api.wait(lambda: tainted(fake_api))
        assert taint_writers(fake_api) == {"old"}
    finally:
        new.process.send_signal(signal.SIGCONT)
    notice.unlink()
    fake_api.wait(lambda: not tainted(fake_api))
    fake_api.wait(lambda: new.log_text().count("this agent leads now") > led)
    for agent in (old, new):
        assert "Traceback" not in agent.log_text()
