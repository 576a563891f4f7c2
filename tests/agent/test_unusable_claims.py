"""A prepared claim whose GPU is lost is not shown as usable by any command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_agent.simulate import inject
from eventually import eventually

from .conftest import Start
from .test_claims import CLAIM

ADDRESS = "0000:00:04.0"
GPU = "gpu-0000-00-04-0"


def unplug(root: Path) -> None:
    inject.unplug(root, ADDRESS)


def lose(root: Path) -> None:
    inject.xid(root, ADDRESS, 79)


@pytest.mark.parametrize(("break_it", "said"), [(unplug, "not on this host"), (lose, "XID 79")])
def test_a_lost_device_is_shown_wherever_claims_are(
    start: Start, state: Path, tmp_path: Path, break_it: Callable[[Path], None], said: str
) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM)

    def ask(*arguments: str) -> Any:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        command = [sys.executable, "-m", "dra_agent", *arguments, "--state-dir", str(state), "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    start().ready()
    ask("claim", "apply", "-f", str(tmp_path / "claim.yaml"))
    (claim,) = ask("claim", "list")
    assert (claim["phase"], claim["message"]) == ("Prepared", "")
    (row,) = ask("claims")
    assert (row["state"], row["reason"]) == ("prepared", "")
    break_it(state / "simulated" / "vm-1gpu")
    # NVML may say first that the GPU is lost; the reason that stays is the one of this fault.
    eventually(
        lambda: (
            (one := ask("claim", "list")[0])["phase"] == "Unhealthy"
            and GPU in one["message"]
            and said in one["message"]
        ),
        lambda: ask("claim", "list"),
    )
    (row,) = ask("claims")
    assert row["state"] == "unhealthy" and said in row["reason"]
    findings = ask("doctor", "--simulate", "vm-1gpu", "--cdi-dir", str(tmp_path / "cdi"))
    told = [json.dumps(finding) for finding in findings["findings"]]
    assert any("team/training" in one and said in one and "problem" in one for one in told), told
