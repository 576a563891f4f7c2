"""A claim is released only if the caller's condition is true of its current entry, while nothing prepares it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare.conditional_release import ConditionalRelease
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.prepare.locks import LockedError
from prepare.simulated_node import SimulatedNode, claim, partition
from prepare.test_ownership import files, sharing_node

__all__ = ["files"]


def refuse(entry: LedgerEntry) -> bool:
    raise RetryableError("has its devices again", where=entry.with_uid)


@pytest.mark.parametrize("parts", [0, 2], ids=["no set-up", "a partition"])
def test_a_refused_release_changes_nothing(node: SimulatedNode, parts: int) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(parts)] if parts else [])
    node.preparer.prepare(claim_)
    entry = node.ledger.get("a")
    with pytest.raises(RetryableError, match="has its devices again"):
        ConditionalRelease(node.preparer, refuse).unprepare("a", Deadline.of(60))
    assert not node.preparer.release_if("a", lambda entry: False)
    assert node.usable("a") and node.ledger.get("a") == entry
    assert ConditionalRelease(node.preparer, lambda current: current == entry).unprepare("a", Deadline.of(60))
    assert node.ledger.entries() == [] and node.specs.claims() == {}


def test_no_prepare_of_the_claim_runs_during_the_decision(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))

    def decide(entry: LedgerEntry) -> bool:
        with pytest.raises(LockedError):
            node.preparer.claim_locks.hold(["a"], Deadline.of(0), "a prepare").__enter__()
        return True

    assert node.preparer.release_if("a", decide)


def test_another_agent_prepares_no_device_during_the_last_decision(tmp_path: Path, files: Path) -> None:
    old, new = sharing_node(tmp_path, files, "old"), sharing_node(tmp_path, files, "new")
    old.preparer.prepare(claim("a", "gpu-0"))
    refused = []

    def decide(entry: LedgerEntry) -> bool:
        try:
            new.preparer.prepare(claim("a", "gpu-0"), Deadline.of(0.05))
        except RetryableError as error:
            refused.append(str(error))
        return True

    assert old.preparer.release_if("a", decide)
    assert refused, "the devices were locked"
    assert old.ledger.current("a") is None
