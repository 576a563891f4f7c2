"""Claims that are prepared before their pods are bound: adopted by the kubelet's request, or released unused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.prepare.ahead import AheadPreparer, prepared_ahead
from dra_agent.prepare.ledger import JournalLedger
from prepare.simulated_node import SimulatedNode, claim, partition


def ahead(node: SimulatedNode) -> list[str]:
    return [entry.uid for entry in prepared_ahead(node.ledger)]


def release_ahead(node: SimulatedNode) -> bool:
    return bool(AheadPreparer(node.preparer).unprepare("a", Deadline.of(60)))


def test_the_request_of_the_kubelet_adopts_the_claim(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    first = node.preparer.prepare_ahead(claim_)
    assert ahead(node) == ["a"] and node.usable("a")
    assert node.preparer.prepare_ahead(claim_) == first, "a repeat changes nothing"
    assert ahead(node) == ["a"]
    assert node.preparer.prepare(claim_) == first
    assert ahead(node) == [] and node.hardware == {"gpu-0": "a"}
    assert "tear_down" not in node.partitions.calls and "roll_back" not in node.partitions.calls
    assert not release_ahead(node), "the kubelet has it now"
    assert node.usable("a")
    assert node.preparer.unprepare("a")
    assert node.hardware == {} and node.ledger.entries() == []


def test_a_claim_of_the_kubelet_stays_its_own(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    prepared = node.preparer.prepare(claim_)
    assert node.preparer.prepare_ahead(claim_) == prepared
    assert ahead(node) == [] and not release_ahead(node)
    assert node.usable("a")


def test_an_unused_claim_is_released_and_its_devices_are_free(node: SimulatedNode) -> None:
    node.preparer.prepare_ahead(claim("a", "gpu-0", config=[partition(2)]))
    assert release_ahead(node)
    assert node.hardware == {} and node.specs.claims() == {} and node.ledger.entries() == []
    assert not release_ahead(node)
    node.preparer.prepare(claim("b", "gpu-0"))


def test_a_claim_without_set_up_is_prepared_ahead_too(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0")
    node.preparer.prepare_ahead(claim_)
    assert ahead(node) == ["a"]
    node.preparer.prepare(claim_)
    assert ahead(node) == [] and node.usable("a")


@pytest.mark.parametrize("method", ["prepare", "prepare_ahead"])
def test_a_claim_that_was_allocated_other_devices_moves_to_them(node: SimulatedNode, method: str) -> None:
    node.preparer.prepare_ahead(claim("a", "gpu-0", config=[partition(2)]))
    prepared = getattr(node.preparer, method)(claim("a", "gpu-1", config=[partition(3)]))
    assert [item.device for item in prepared] == ["gpu-1"]
    assert node.hardware == {"gpu-1": "a"}
    assert ahead(node) == (["a"] if method == "prepare_ahead" else [])


def test_a_claim_of_the_kubelet_never_moves(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(PermanentError, match="is prepared with other devices"):
        node.preparer.prepare_ahead(claim("a", "gpu-1"))
    assert node.usable("a")


def test_a_restart_keeps_the_claim_and_it_can_still_be_released(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    node.preparer.prepare_ahead(claim_)
    node.crash_and_restart()
    assert node.preparer.recovery.recover().kept == ("a",)
    assert ahead(node) == ["a"], "a repair is not a request of the kubelet"
    assert release_ahead(node)
    assert node.hardware == {}


def test_a_failed_attempt_leaves_nothing(node: SimulatedNode) -> None:
    with pytest.raises(RetryableError, match="no room"):
        node.preparer.prepare_ahead(claim("a", "gpu-0", config=[partition(2, fail=True)]))
    assert node.hardware == {} and node.ledger.entries() == []


def test_adoption_is_durable(tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path)
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    with JournalLedger(tmp_path / "state", "boot-1") as ledger:
        node.ledger = ledger
        node.start()
        node.preparer.prepare_ahead(claim_)
    with JournalLedger(tmp_path / "state", "boot-1") as ledger:
        node.ledger = ledger
        node.start()
        assert ahead(node) == ["a"]
        node.preparer.prepare(claim_)
    with JournalLedger(tmp_path / "state", "boot-1") as ledger:
        assert prepared_ahead(ledger) == []


def test_an_earlier_agent_reads_the_record(node: SimulatedNode) -> None:
    """It ignores the mark: the claim is one like any other, and is released with it."""

    class EarlierRecord(msgspec.Struct):
        devices: list[Any]
        setups: list[Any] = []

    node.preparer.prepare_ahead(claim("a", "gpu-0", config=[partition(2)]))
    (entry,) = node.ledger.entries()
    assert len(msgspec.convert(entry.payload, EarlierRecord).setups) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (partition(8), "size: at most 7"),
        ({**partition(1), "opaque": {"driver": "dra-agent.internal"}}, "not an object"),
    ],
)
def test_the_check_of_a_claim_changes_nothing(node: SimulatedNode, config: dict[str, Any], message: str) -> None:
    with pytest.raises(PermanentError, match=message):
        node.preparer.check(claim("a", "gpu-0", config=[config]))
    node.preparer.check(claim("a", "gpu-0", config=[partition(2)]))
    assert node.partitions.calls == [] and node.ledger.entries() == []
