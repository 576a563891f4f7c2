"""An agent takes over the state of earlier versions: claims stay prepared, and can be released."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from deploy.archives import extract

import preloaded
from agent.conftest import Start
from eventually import eventually

EARLIER = Path(__file__).parent / "earlier_state"
FIRST = "3e98ba5"
LAST = "b202e58"
"""Commits whose state is recorded."""
HELD = {
    "whole": "gpu-0000-61-00-0",
    "mig": "gpu-0000-1b-00-0-mig-1g-10gb-6",
    "vfio": "gpu-0000-43-00-0",
    "sliced": "gpu-0000-9d-00-0",
}


def restore(commit: str, state: Path, cdi: Path, config: Path) -> dict[str, dict[str, Any]]:
    """Restore the files of an agent of the commit; returns its CDI specs by file name."""
    with tarfile.open(EARLIER / f"{commit}.tar.xz") as archive:
        extract(archive, state.parent / "earlier")
    (state.parent / "earlier" / "state").rename(state)
    (state.parent / "earlier" / "config.toml").rename(config)
    cdi.mkdir()
    specs = {}
    for spec in (state.parent / "earlier" / "cdi").iterdir():
        (cdi / spec.name).write_text(spec.read_text().replace("STATE/", f"{state}/"))
        specs[spec.name] = json.loads((cdi / spec.name).read_text())
    return specs


def cdi_names(specs: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {name: [device["name"] for device in spec["devices"]] for name, spec in specs.items()}


@pytest.mark.parametrize("commit", [FIRST, LAST])
def test_claims_of_an_earlier_version_stay_prepared_and_are_released(
    start: Start, tmp_path: Path, state: Path, commit: str
) -> None:
    cdi, config = tmp_path / "cdi", tmp_path / "config.toml"
    earlier = restore(commit, state, cdi, config)
    agent = start("--simulate", "dgx-h100", "--node-name", "vm", "--config", str(config)).ready()

    def cli(*arguments: str) -> Any:
        command = ["claim", *arguments, "--state-dir", str(state)]
        result = preloaded.run(command, env=dict(os.environ), cwd=tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout) if "json" in arguments else result.stdout

    def claims() -> dict[str, tuple[str, list[str]]]:
        """Return the phase and the devices of each claim."""
        found = cli("list", "-o", "json")
        return {one["name"]: (one["phase"], [device["device"] for device in one["devices"]]) for one in found}

    held = {name: ("Prepared", [device]) for name, device in HELD.items()}
    # The simulated host is a new one: the MIG instance and the driver's binding of the earlier one are made again.
    eventually(lambda: claims() == held | {"waits": ("Pending", [])}, agent.log_text)
    (checked,) = agent.wait_for(r"claims of an earlier run checked (.*)\n").groups()
    assert "rolled_back=0 removed=0 problems=0" in checked
    now = {spec.name: json.loads(spec.read_text()) for spec in cdi.iterdir()}
    assert cdi_names(now) == cdi_names(earlier), "containers are created with the ids of the earlier specs"
    cli("delete", "vfio", "mig", "sliced", "whole")
    eventually(lambda: claims() == {"waits": held["whole"]}, agent.log_text)
    cli("delete", "waits")
    assert not list(cdi.iterdir())
    assert not [record for kind in ("mig", "vfio", "timeslice") for record in (state / kind).iterdir()]
    assert agent.end() == 0
