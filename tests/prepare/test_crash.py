"""The agent is killed at every point of every operation: nothing is lost, and nothing is held twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.errors import AgentError
from dra_agent.prepare.ledger import LedgerEntry
from prepare.simulated_world import DRIVER, Crash, World, claim, partition

Operation = Callable[[World], object]

PLAIN = claim("a", "gpu-0", "gpu-1")
WITH_SETUP = claim("a", "gpu-0", "gpu-1", config=[partition(2)])


def points_of(tmp_path: Path, before: Operation, operation: Operation) -> list[str]:
    world = World(tmp_path / "rehearsal")
    before(world)
    world.points.arm(None)
    operation(world)
    return world.points.seen


@pytest.mark.parametrize("keep_unsynced", [False, True])
@pytest.mark.parametrize("wanted", [PLAIN, WITH_SETUP], ids=["plain", "with set-up"])
def test_killed_while_preparing(tmp_path: Path, wanted: dict[str, object], keep_unsynced: bool) -> None:
    points = points_of(tmp_path, lambda world: None, lambda world: world.preparer.prepare(wanted))
    assert {"before start", "after write", "after complete"} <= set(points)
    for index, point in enumerate(points):
        world = World(tmp_path / f"{index}")
        world.memory.keep_unsynced = keep_unsynced
        neighbour = world.preparer.prepare(claim("neighbour", "gpu-7"))
        world.points.arm(index)
        with pytest.raises(Crash, match=point):
            world.preparer.prepare(wanted)
        world.crash_and_restart()
        report = world.preparer.recover()
        assert report.problems == (), point
        assert "neighbour" in report.kept, point
        entry = world.ledger.get("a")
        if index >= points.index("after complete"):  # from here on the ledger has it; files are written again
            assert entry is not None and entry.state == "completed" and world.usable("a")
        else:
            assert entry is None and world.specs.claims().keys() == {"neighbour"} and world.hardware == {}, point
        # The kubelet asks again, and gets it; another claim for the same devices does not.
        assert world.preparer.prepare(wanted)
        assert world.usable("a") and world.preparer.prepare(claim("neighbour", "gpu-7")) == neighbour
        with pytest.raises(AgentError):
            world.preparer.prepare(claim("thief", "gpu-1"))
        assert not list(world.cdi.glob(".*")), "temporary files are left"


@pytest.mark.parametrize("wanted", [PLAIN, WITH_SETUP], ids=["plain", "with set-up"])
def test_killed_while_unpreparing(tmp_path: Path, wanted: dict[str, object]) -> None:
    points = points_of(
        tmp_path, lambda world: world.preparer.prepare(wanted), lambda world: world.preparer.unprepare("a")
    )
    assert {"before delete", "before release", "after release"} <= set(points)
    for index, point in enumerate(points):
        world = World(tmp_path / f"{index}")
        world.preparer.prepare(wanted)
        world.points.arm(index)
        with pytest.raises(Crash, match=point):
            world.preparer.unprepare("a")
        world.crash_and_restart()
        assert world.preparer.recover().problems == ()
        if world.ledger.get("a") is not None:
            assert world.usable("a"), f"{point}: still held, so it must still be usable"
        world.preparer.unprepare("a")
        assert world.ledger.entries() == [] and world.specs.claims() == {} and world.hardware == {}


def test_killed_while_recovering(tmp_path: Path) -> None:
    """A crash within the recovery of a crash, at every point."""

    def interrupted(world: World) -> None:
        world.preparer.prepare(claim("done", "gpu-5"))
        world.specs.file("done").unlink()
        world.points.arm(4)
        with pytest.raises(Crash):
            world.preparer.prepare(WITH_SETUP)
        world.specs.file("stranger").write_text("{}")
        world.crash_and_restart()

    points = points_of(tmp_path, interrupted, lambda world: world.preparer.recover())
    assert len(points) > 6
    for index in range(len(points)):
        world = World(tmp_path / f"{index}")
        interrupted(world)
        world.points.arm(index)
        with pytest.raises(Crash):
            world.preparer.recover()
        world.crash_and_restart()
        assert world.preparer.recover().problems == ()
        assert [entry.uid for entry in world.ledger.entries()] == ["done"] and world.usable("done")
        assert world.specs.claims().keys() == {"done"} and world.hardware == {}


def test_recovery_says_what_it_found(world: World) -> None:
    world.preparer.prepare(claim("kept", "gpu-0"))
    world.preparer.prepare(claim("missing", "gpu-1"))
    world.preparer.prepare(claim("edited", "gpu-2"))
    world.preparer.prepare(claim("lost", "gpu-3"))
    world.specs.file("missing").unlink()
    world.specs.file("edited").write_text("{}")
    world.specs.file("stranger").write_text("{}")
    (world.cdi / f".{DRIVER}-claim_kept.json.99-1.tmp").write_text("{")
    others = [world.cdi / "nvidia.yaml", world.cdi / "other-claim_x.json", world.cdi / f"{DRIVER}-claim_x.yaml"]
    for path in others:
        path.write_text("{}")
    del world.devices["gpu-3"]
    world.crash_and_restart()
    report = world.preparer.recover()
    assert report.kept == ("kept",) and report.rebuilt == ("edited", "missing") and report.removed == ("stranger",)
    assert (
        len(report.problems) == 1 and "device gpu-3 of pool node-a/gpu: is not on this host now" in report.problems[0]
    )
    assert "default/claim-lost (lost)" in report.problems[0]
    assert all(path.exists() for path in others), "files of others are not the agent's to remove"
    assert not list(world.cdi.glob(".*"))
    with pytest.raises(AgentError):
        world.preparer.prepare(claim("x", "gpu-3"))
    assert world.ledger.get("lost") is not None


def test_a_claim_of_a_newer_agent_is_left_as_it_is(world: World) -> None:
    import msgspec

    world.preparer.prepare(claim("newer", "gpu-0"))
    entry = world.memory.disk["newer"]
    world.memory.disk["newer"] = msgspec.structs.replace(entry, state="frozen", payload={"devices": "elsewhere"})
    report = world.preparer.recover()
    assert "newer agent" in report.problems[0] and world.specs.file("newer").exists()
    assert world.preparer.unprepare("newer") and world.ledger.entries() == []


def test_a_spec_that_is_lost_while_the_agent_runs_is_written_again(world: World) -> None:
    for uid, gpu in (("a", "gpu-0"), ("b", "gpu-1"), ("c", "gpu-2")):
        world.preparer.prepare(claim(uid, gpu))
    world.specs.file("a").unlink()
    world.host.dev_path("/dev/dri/card2").unlink()
    world.specs.file("stranger").write_text("{}")
    report = world.preparer.repair()
    assert report.rebuilt == ("a",) and report.kept == ("b",) and world.usable("a")
    assert len(report.problems) == 1 and "gpu-2" in report.problems[0]
    assert world.specs.file("stranger").exists(), "a claim in work may have written it: only a start removes strangers"


def test_mending_does_not_bring_back_what_is_released_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.preparer.prepare(claim("a", "gpu-0"))
    entries = world.ledger.entries

    def then_released() -> list[LedgerEntry]:
        found = entries()
        world.preparer.unprepare("a")
        return found

    monkeypatch.setattr(world.ledger, "entries", then_released)
    world.preparer.repair()
    assert world.specs.claims() == {}
