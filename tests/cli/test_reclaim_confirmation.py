"""`dra-agent reclaim start` names the claims that it releases, or why they are not known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.manifests import CLASS, claim, write
from dra_agent.errors import RetryableError

Command = Callable[..., tuple[int, str, str]]


def test_a_ledger_that_cannot_be_read_is_reported_and_the_reclaim_starts(command: Command, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/ledger").write_text("not a folder")
    code, _, errors = command("reclaim", "start", "--yes")
    assert "the claims that this releases are not known: " in errors and "ledger: cannot be read: " in errors
    assert code == 1 and "no agent is running here" in errors, "the request was sent"


@pytest.mark.usefixtures("agent")
def test_a_claim_that_is_being_prepared_is_named(command: Command, preparer: Any) -> None:
    preparer.error = RetryableError("the library hangs")
    write(Path("claim.yaml"), CLASS, claim("train"), claim("waits", 2))
    command("claim", "apply", "-f", "claim.yaml")
    _, _, errors = command("reclaim", "start", "--yes")
    assert "this releases 1 claim of this node\n  default/train\n" in errors
