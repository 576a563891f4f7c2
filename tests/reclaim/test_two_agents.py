"""Two agents of a rolling update with one saved reclaim state: no request of an operator is lost between them."""

from __future__ import annotations

import asyncio
import fcntl
import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_agent.clock import STEADY
from dra_agent.errors import RetryableError
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import STATE_FILE, StateChangedError, StateFile
from eventually import eventually_async
from reclaim.shared_state import BOOT, Agents, request, requested, run


@pytest.mark.parametrize("new_agent", ["has registered", "has read the state", "has started"])
@pytest.mark.parametrize("old_agent_ends", [False, True])
def test_a_request_at_the_old_agent_reaches_the_new_one(tmp_path: Path, new_agent: str, old_agent_ends: bool) -> None:
    """The new agent has the socket only when it has started; a client may be connected to the old one longer."""

    async def scenario(agents: Agents) -> None:
        old = await agents.start("old")
        agents.register("new")
        if new_agent != "has registered":
            agents.read("new")
        if new_agent == "has started":
            await agents.start("new")
        await request(old, "maintenance")
        assert old.unsaved == ""
        assert requested(agents.saved()) == "maintenance"
        if old_agent_ends:
            await agents.end("old")
        new = await agents.start("new") if new_agent != "has started" else agents.running["new"]
        await agents.follow()
        assert requested(new.state) == "maintenance" and new.state.phase == "notice"
        assert old_agent_ends or requested(old.state) == "maintenance"
        await new.cancel(everything=False)
        await agents.follow()
        assert {requested(agent.state) for agent in agents.running.values()} == {""}

    run(tmp_path, scenario)


def test_a_cancel_at_the_old_agent_reaches_the_new_one(tmp_path: Path) -> None:
    async def scenario(agents: Agents) -> None:
        old = await agents.start("old")
        await request(old, "maintenance")
        new = await agents.start("new")
        assert requested(new.state) == "maintenance"
        await old.cancel(everything=False)
        await agents.follow()
        assert new.state.phase == "cancelled" and agents.saved().phase == "cancelled"

    run(tmp_path, scenario)


def test_a_request_at_an_agent_that_has_ended_is_followed(tmp_path: Path) -> None:
    """It was the newest for less than the interval of the other."""

    async def scenario(agents: Agents) -> None:
        old = await agents.start("old")
        await request(await agents.start("new"), "maintenance")
        await agents.end("new")
        await agents.follow()
        assert requested(old.state) == "maintenance"

    run(tmp_path, scenario)


def test_a_save_never_replaces_a_request_that_it_does_not_have(tmp_path: Path) -> None:
    async def scenario(agents: Agents) -> None:
        old = await agents.start("old")
        new = await agents.start("new")
        await request(old, "maintenance")
        await agents.sources["new"].report("spot")
        await eventually_async(lambda: new.state.phase == "notice")
        assert requested(agents.saved()) == "maintenance"
        await agents.follow()
        await eventually_async(lambda: len(agents.saved().active) == 2)
        assert requested(agents.saved()) == requested(new.state) == requested(old.state) == "maintenance"

    run(tmp_path, scenario)


def test_a_state_that_was_left_to_an_agent_is_saved_after_its_end(tmp_path: Path) -> None:
    """As when a new version fails while it starts."""

    async def scenario(agents: Agents) -> None:
        old = await agents.start("old")
        agents.register("new")
        await agents.sources["old"].report("spot")
        await eventually_async(lambda: old.state.phase == "notice")
        await agents.follow()
        assert agents.saved().phase == "none", "the new agent saves its own state"
        await agents.end("new")
        await agents.follow()
        await eventually_async(lambda: agents.saved().phase == "notice")

    run(tmp_path, scenario)


@pytest.mark.parametrize("receiver", ["old", "new"])
def test_dismissed_events_are_those_of_the_request(tmp_path: Path, receiver: str) -> None:
    async def scenario(agents: Agents) -> None:
        for name in ("old", "new"):
            await agents.start(name)
            await agents.sources[name].report("first")
        await eventually_async(lambda: all(agent.state.active for agent in agents.running.values()))
        await agents.running[receiver].cancel(everything=True)
        await agents.follow()
        assert {agent.state.phase for agent in agents.running.values()} == {"cancelled"}
        for source in agents.sources.values():
            await source.report("first", "second")
        await eventually_async(lambda: all(agent.state.active for agent in agents.running.values()))
        await agents.follow()
        events = [[one.signal.event for one in agent.state.active] for agent in agents.running.values()]
        assert events == [["second"], ["second"]]

    run(tmp_path, scenario)


def test_an_event_that_is_withdrawn_and_announced_again_counts_at_both(tmp_path: Path) -> None:
    """One agent has seen the withdrawal, and the other has not yet."""

    async def scenario(agents: Agents) -> None:
        for name in ("old", "new"):
            await agents.start(name)
            await agents.sources[name].report("spot")
        old, new = agents.running["old"], agents.running["new"]
        await eventually_async(lambda: old.state.active and new.state.active)
        await new.cancel(everything=True)
        await agents.follow()
        await agents.sources["old"].report()
        await eventually_async(lambda: not old.state.dismissed)
        await new.begin("hint", deadline=None, description="another request")
        await agents.follow()
        await agents.sources["old"].report("spot")
        await eventually_async(lambda: old.state.phase == "notice")

    run(tmp_path, scenario)


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"version": 2, "state": {}, "later": true}'])
def test_a_file_without_a_state_has_no_effect(tmp_path: Path, content: bytes | None) -> None:
    """Removed with the state directory, or of a later version, which is left as it is."""

    async def scenario(agents: Agents) -> None:
        old = await agents.start("old")
        await request(old, "maintenance")
        path = tmp_path / STATE_FILE
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        await agents.follow()
        assert requested(old.state) == "maintenance"
        assert [one.name for one in tmp_path.iterdir()] == ([] if content is None else [STATE_FILE])
        await old.begin("notice", deadline=STEADY.now() + timedelta(hours=1), description="with a time")
        assert requested(agents.saved()) == "with a time"

    run(tmp_path, scenario)


def test_a_file_that_another_agent_changed_is_not_replaced(tmp_path: Path) -> None:
    state, later = ReclaimState(BOOT), ReclaimState(BOOT, dismissed=(("azure", "e"),))
    one, other = StateFile(tmp_path), StateFile(tmp_path)
    for file in (one, other):
        file.load(BOOT)
    one.save(state)
    with pytest.raises(StateChangedError, match=str(tmp_path / STATE_FILE)):
        other.save(later)
    changes = other.changes(BOOT)
    assert changes is not None and (changes.known, changes.current) == (state, state)
    with pytest.raises(StateChangedError):
        other.save(later)
    assert other.accept(changes) and not other.accept(changes) and other.changes(BOOT) is None
    other.save(later)
    assert not other.is_changed and one.is_changed


def test_an_agent_that_is_stopped_while_it_saves_does_not_block_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP, or a cgroup that is frozen: its lock stays."""
    monkeypatch.setattr("dra_agent.reclaim.state_file.LOCK_TIMEOUT_S", 0.01)
    stopped = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        StateFile(tmp_path).save(ReclaimState(BOOT))
    finally:
        os.close(stopped)
    assert StateFile(tmp_path).load(BOOT) == ReclaimState(BOOT)


def test_a_request_is_saved_where_it_is_not_known_which_agent_is_the_newest(tmp_path: Path) -> None:

    def unreadable() -> bool:
        raise RetryableError("cannot be listed")

    async def scenario() -> None:
        agent = ReclaimService(tmp_path, BOOT, [], is_newest=unreadable)
        await agent.start()
        await request(agent, "maintenance")
        await agent.follow_other_agents()
        assert requested(StateFile(tmp_path).load(BOOT)) == "maintenance"
        await agent.stop()

    asyncio.run(scenario())


NAMES = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["register", "start", "end", "follow", "cancel"]), NAMES),
    st.tuples(st.just("request"), NAMES),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_the_last_request_is_that_of_every_agent(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    """Requests that are saved at once, at any agent, while others start, follow and end."""

    async def scenario(agents: Agents) -> None:
        expected = ""
        for number, (step, name) in enumerate(steps):
            running = name in agents.running
            match step:
                case "register" if name not in agents.registered:
                    agents.register(name)
                case "start" if not running:
                    await agents.start(name)
                case "end" if name in agents.registered:
                    await agents.end(name)
                case "follow" if running:
                    await agents.running[name].follow_other_agents()
                case "request" if running:
                    expected = f"request {number}"
                    await request(agents.running[name], expected)
                    assert agents.running[name].unsaved == ""
                case "cancel" if running:
                    expected = ""
                    await agents.running[name].cancel(everything=False)
                    assert agents.running[name].unsaved == ""
        if not agents.running:
            await agents.start("last")
        await agents.follow()
        assert {requested(agent.state) for agent in agents.running.values()} == {expected}
        assert requested(agents.saved()) == expected

    run(tmp_path_factory.mktemp("state"), scenario)
