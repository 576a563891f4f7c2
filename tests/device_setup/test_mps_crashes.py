"""An agent that dies before any step of sharing through MPS: who comes after it leaves the GPU as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deadlines import a_minute
from device_setup.test_mps import Modes, World, share, world
from dra_agent.device_setup.mps.daemon import MpsDaemon
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.device_setup.mps.sharing import MpsClientStore
from dra_agent.device_setup.shares import ShareConfig

__all__ = ["world"]

STEPS: list[tuple[type, str]] = [
    (MpsClientStore, "write"),
    (MpsClientStore, "delete"),
    (Modes, "get"),
    (Modes, "set"),
    (Modes, "restore"),
    (MpsPaths, "make"),
    (MpsPaths, "remove"),
    (MpsDaemon, "start"),
    (MpsDaemon, "limit"),
    (MpsDaemon, "quit"),
]
MAX_CALLS = 40


class Death(BaseException):
    """The agent is killed: nothing that handles errors sees it."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, bool], list[str]]]:
    """Die at the numbered step, before it or right after; gives the steps that were begun."""

    def arm(number: int, after: bool) -> list[str]:
        begun: list[str] = []

        def counted(kind: type, name: str, call: Any) -> Callable[..., Any]:
            def step(*arguments: Any, **named: Any) -> Any:
                begun.append(f"{kind.__name__}.{name}")
                last = len(begun) == number
                if last and not after:
                    raise Death
                result = call(*arguments, **named)
                if last:
                    raise Death
                return result

            return step

        for kind, name in STEPS:
            monkeypatch.setattr(kind, name, counted(kind, name, getattr(kind, name)))
        return begun

    yield arm
    monkeypatch.undo()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("ending", [False, True], ids=["setting up", "tearing down"])
def test_nothing_is_left_of_an_agent_that_died_at_any_step(
    world: World,
    dying: Callable[[int, bool], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    ending: bool,
    after: bool,
) -> None:
    item = share(1)
    reached: set[str] = set()
    for number in range(1, MAX_CALLS):
        world.modes.now["GPU-gpu-a"] = 1
        setup = world.again()
        if ending:
            setup.set_up("uid-1", [item], ShareConfig(), None, a_minute())
        begun = dying(number, after)
        try:
            if ending:
                setup.tear_down("uid-1", [item.key], {item.key: "mps"}, a_minute())
            else:
                setup.set_up("uid-1", [item], ShareConfig(), None, a_minute())
            died = False
        except Death:
            died = True
        reached.update(begun)
        monkeypatch.undo()
        # What the ledger has begun is undone by the next agent; what was being undone is undone again.
        world.again().roll_back("uid-1", [item.key], ShareConfig(), a_minute())
        world.mps.supervise()
        assert world.pid() is None, begun
        assert world.modes.now == {"GPU-gpu-a": 1}, begun
        assert not (world.path / "state/mps/gpu-a.json").exists(), begun
        assert not world.place().pipe.exists() and not world.place().shm.exists(), begun
        if not died:
            break
    else:
        raise AssertionError(f"never came through: {begun}")
    wanted = (
        {"MpsClientStore.delete", "MpsDaemon.quit", "Modes.restore", "MpsPaths.remove"}
        if ending
        else {"MpsDaemon.start"}
    )
    assert wanted <= reached


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_share_is_not_affected_by_a_failed_set_up_of_another(
    world: World, dying: Callable[[int, bool], list[str]], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    setup = world.setup
    first = setup.set_up("uid-1", [share(1, "8Gi")], ShareConfig(), None, a_minute())
    pid = world.pid()
    for number in range(1, MAX_CALLS):
        begun = dying(number, after)
        try:
            world.again().set_up("uid-2", [share(2, "16Gi")], ShareConfig(), None, a_minute())
            died = False
        except Death:
            died = True
        monkeypatch.undo()
        setup = world.again()
        setup.roll_back("uid-2", ["gpu-a/share-2"], ShareConfig(), a_minute())
        assert world.pid() == pid and world.modes.now == {"GPU-gpu-a": 3}, begun
        assert setup.set_up("uid-1", [share(1, "8Gi")], ShareConfig(), first.record, a_minute()) == first
        if not died:
            return
    raise AssertionError("never came through")
