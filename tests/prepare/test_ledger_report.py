"""The report of the ledger, and its release."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dra_agent.errors import PermanentError
from dra_agent.prepare.ledger import JournalLedger, LedgerDamage, LedgerReport, SupersededClaim


def report(**findings: object) -> LedgerReport:
    empty = LedgerReport(0, (), (), (), (), 0, (), 0, None)
    return msgspec.structs.replace(empty, **findings)


def test_normal_findings_are_not_problems() -> None:
    assert report(claims=3, started=("a",), earlier_boot=("b",), foreign_records=2).problems() == []
    assert report(damage=(LedgerDamage("journal", 10, 3, "torn tail", "u"),)).problems() == []


def test_losses_are_reported_with_their_probable_claim() -> None:
    lossy_report = report(
        damage=(
            LedgerDamage("journal", 10, 3, "torn tail"),
            LedgerDamage("journal", 40, 7, "damaged record", "u1"),
            LedgerDamage("snapshot", 0, 9, "damaged record"),
        ),
        lost_records=2,
        superseded=(SupersededClaim("u2", "u3", "node/gpu", "gpu-0"),),
    )
    assert lossy_report.problems() == [
        "journal: 7 damaged bytes at 40, which seem to be of claim u1",
        "snapshot: 9 damaged bytes at 0",
        "2 records are missing",
        "claim u2 was dropped, as claim u3 has its device gpu-0 of pool node/gpu",
    ]


def test_a_ledger_is_exclusive_until_it_is_closed(tmp_path: Path) -> None:
    with JournalLedger(tmp_path, "boot") as first:
        assert first.entries() == []
        with pytest.raises(PermanentError):
            JournalLedger(tmp_path, "boot")
    with JournalLedger(tmp_path, "boot") as second:
        assert second.report.claims == 0
