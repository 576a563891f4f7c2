"""No command shows a prepared claim with a lost GPU as usable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import preloaded
from dra_simulate import inject
from eventually import eventually

from .conftest import Start
from .test_claims import CLAIM

ADDRESS = "0000:00:04.0"
GPU = "gpu-0000-00-04-0"


def unplug(root: Path) -> None:
    inject.unplug(root, ADDRESS)


def lose(root: Path) -> None:
    inject.xid(root, ADDRESS, 79)


@pytest.mark.parametrize(("damage", "message"), [(unplug, "not on this host"), (lose, "XID 79")])
def test_a_lost_device_is_shown_wherever_claims_are_listed(
    start: Start, state: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM)

    def run_json(*arguments: str) -> Any:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        result = preloaded.run([*arguments, "--state-dir", str(state), "-o", "json"], env=variables)
        assert result.stdout, result.stderr
        return json.loads(result.stdout)

    start().ready()
    run_json("claim", "apply", "-f", str(tmp_path / "claim.yaml"))
    (claim,) = run_json("claim", "list")
    assert (claim["phase"], claim["message"]) == ("Prepared", "")
    (row,) = run_json("claims")
    assert (row["state"], row["reason"]) == ("prepared", "")
    damage(state / "simulated" / "vm-1gpu")
    # NVML may first report that the GPU is lost; the final reason is that of the fault.
    eventually(
        lambda: (
            (finding := run_json("claim", "list")[0])["phase"] == "Unhealthy"
            and GPU in finding["message"]
            and message in finding["message"]
        ),
        lambda: run_json("claim", "list"),
    )
    (row,) = run_json("claims")
    assert row["state"] == "unhealthy" and message in row["reason"]
    findings = run_json("doctor", "--simulate", "vm-1gpu", "--cdi-dir", str(tmp_path / "cdi"))
    findings_json = [json.dumps(finding) for finding in findings["findings"]]
    assert any(
        "team/training" in finding and message in finding and "problem" in finding for finding in findings_json
    ), findings_json
