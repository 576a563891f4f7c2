"""The agent is killed at every point of every operation: no claim is lost, and no device has two holders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.errors import AgentError
from dra_agent.prepare.ledger import LedgerEntry
from prepare.simulated_node import DRIVER, Crash, SimulatedNode, claim, partition

Operation = Callable[[SimulatedNode], object]

PLAIN = claim("a", "gpu-0", "gpu-1")
WITH_SETUP = claim("a", "gpu-0", "gpu-1", config=[partition(2)])


def points_of(tmp_path: Path, before: Operation, operation: Operation) -> list[str]:
    node = SimulatedNode(tmp_path / "rehearsal")
    before(node)
    node.points.arm(None)
    operation(node)
    return node.points.seen


@pytest.mark.parametrize("keep_unsynced", [False, True])
@pytest.mark.parametrize("claim_", [PLAIN, WITH_SETUP], ids=["plain", "with set-up"])
def test_a_kill_at_any_point_of_prepare_is_recovered(
    tmp_path: Path, claim_: dict[str, object], keep_unsynced: bool
) -> None:
    points = points_of(tmp_path, lambda node: None, lambda node: node.preparer.prepare(claim_))
    assert {"before start", "after write", "after complete"} <= set(points)
    for index, point in enumerate(points):
        node = SimulatedNode(tmp_path / f"{index}")
        node.memory.keep_unsynced = keep_unsynced
        other = node.preparer.prepare(claim("neighbour", "gpu-7"))
        node.points.arm(index)
        with pytest.raises(Crash, match=point):
            node.preparer.prepare(claim_)
        node.crash_and_restart()
        report = node.preparer.recovery.recover()
        assert report.problems == (), point
        assert "neighbour" in report.kept, point
        entry = node.ledger.get("a")
        # from this point the ledger has the claim, and files are written again
        if index >= points.index("after complete"):
            assert entry is not None and entry.state == "completed" and node.usable("a")
        else:
            assert entry is None and node.specs.claims().keys() == {"neighbour"} and node.hardware == {}, point
        # The kubelet retries and succeeds; another claim for the same devices does not.
        assert node.preparer.prepare(claim_)
        assert node.usable("a") and node.preparer.prepare(claim("neighbour", "gpu-7")) == other
        with pytest.raises(AgentError):
            node.preparer.prepare(claim("thief", "gpu-1"))
        assert not list(node.cdi.glob(".*")), "temporary files remain"


@pytest.mark.parametrize("claim_", [PLAIN, WITH_SETUP], ids=["plain", "with set-up"])
def test_a_kill_at_any_point_of_unprepare_is_recovered(tmp_path: Path, claim_: dict[str, object]) -> None:
    points = points_of(tmp_path, lambda node: node.preparer.prepare(claim_), lambda node: node.preparer.unprepare("a"))
    assert {"before delete", "before release", "after release"} <= set(points)
    for index, point in enumerate(points):
        node = SimulatedNode(tmp_path / f"{index}")
        node.preparer.prepare(claim_)
        node.points.arm(index)
        with pytest.raises(Crash, match=point):
            node.preparer.unprepare("a")
        node.crash_and_restart()
        assert node.preparer.recovery.recover().problems == ()
        if node.ledger.get("a") is not None:
            assert node.usable("a"), f"{point}: a held claim must be usable"
        node.preparer.unprepare("a")
        assert node.ledger.entries() == [] and node.specs.claims() == {} and node.hardware == {}


def test_a_kill_at_any_point_of_a_recovery_is_recovered(tmp_path: Path) -> None:
    """The agent is killed again at every point of the recovery."""

    def crash_during_prepare(node: SimulatedNode) -> None:
        node.preparer.prepare(claim("done", "gpu-5"))
        node.specs.file("done").unlink()
        node.points.arm(4)
        with pytest.raises(Crash):
            node.preparer.prepare(WITH_SETUP)
        node.specs.file("stranger").write_text("{}")
        node.crash_and_restart()

    points = points_of(tmp_path, crash_during_prepare, lambda node: node.preparer.recovery.recover())
    assert len(points) > 6
    for index in range(len(points)):
        node = SimulatedNode(tmp_path / f"{index}")
        crash_during_prepare(node)
        node.points.arm(index)
        with pytest.raises(Crash):
            node.preparer.recovery.recover()
        node.crash_and_restart()
        assert node.preparer.recovery.recover().problems == ()
        assert [entry.uid for entry in node.ledger.entries()] == ["done"] and node.usable("done")
        assert node.specs.claims().keys() == {"done"} and node.hardware == {}


def test_recovery_reports_its_findings(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("kept", "gpu-0"))
    node.preparer.prepare(claim("missing", "gpu-1"))
    node.preparer.prepare(claim("edited", "gpu-2"))
    node.preparer.prepare(claim("lost", "gpu-3"))
    node.specs.file("missing").unlink()
    node.specs.file("edited").write_text("{}")
    node.specs.file("stranger").write_text("{}")
    (node.cdi / f".{DRIVER}-claim_kept.json.99-1.tmp").write_text("{")
    foreign_files = [node.cdi / "nvidia.yaml", node.cdi / "other-claim_x.json", node.cdi / f"{DRIVER}-claim_x.yaml"]
    for path in foreign_files:
        path.write_text("{}")
    del node.devices["gpu-3"]
    node.crash_and_restart()
    report = node.preparer.recovery.recover()
    assert report.kept == ("kept",) and report.rebuilt == ("edited", "missing") and report.removed == ("stranger",)
    assert (
        len(report.problems) == 1 and "device gpu-3 of pool node-a/gpu: is not on this host now" in report.problems[0]
    )
    assert "default/claim-lost (lost)" in report.problems[0]
    assert all(path.exists() for path in foreign_files), "the agent must not remove files of others"
    assert not list(node.cdi.glob(".*"))
    with pytest.raises(AgentError):
        node.preparer.prepare(claim("x", "gpu-3"))
    assert node.ledger.get("lost") is not None


def test_a_claim_of_a_newer_agent_is_left_unchanged(node: SimulatedNode) -> None:
    import msgspec

    node.preparer.prepare(claim("newer", "gpu-0"))
    entry = node.memory.disk["newer"]
    node.memory.disk["newer"] = msgspec.structs.replace(entry, state="frozen", payload={"devices": "elsewhere"})
    report = node.preparer.recovery.recover()
    assert "newer agent" in report.problems[0] and node.specs.file("newer").exists()
    assert node.preparer.unprepare("newer") and node.ledger.entries() == []


def test_a_spec_lost_at_run_time_is_written_again(node: SimulatedNode) -> None:
    for uid, gpu in (("a", "gpu-0"), ("b", "gpu-1"), ("c", "gpu-2")):
        node.preparer.prepare(claim(uid, gpu))
    node.specs.file("a").unlink()
    node.host.dev_path("/dev/dri/card2").unlink()
    node.specs.file("stranger").write_text("{}")
    report = node.preparer.recovery.repair()
    assert report.rebuilt == ("a",) and report.kept == ("b",) and node.usable("a")
    assert len(report.problems) == 1 and "gpu-2" in report.problems[0]
    assert node.specs.file("stranger").exists(), (
        "a running prepare may have written it: only recovery at startup removes unknown specs"
    )


def test_a_repair_does_not_restore_a_claim_released_meanwhile(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))
    entries = node.ledger.entries

    def release_after_read() -> list[LedgerEntry]:
        listed = entries()
        node.preparer.unprepare("a")
        return listed

    monkeypatch.setattr(node.ledger, "entries", release_after_read)
    node.preparer.recovery.repair()
    assert node.specs.claims() == {}
