"""Back from this agent to an earlier version: it reads the state, keeps all claims, and releases them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import preloaded
from agent.conftest import AgentProcess, Start
from agent.earlier_formats import State, read_state
from agent.earlier_program import PROGRAM, REQUESTED
from agent.test_upgrade import EARLIER, FIRST, HELD, LAST, cdi_names, restore
from agent.test_upgrade_slices import HOST, NEW, NODE, are_published, connection, slice_writes
from eventually import eventually
from fake_apiserver.fake import FakeApi

LATER = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: later}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: any, selectors: [{cel: {expression:
  'device.attributes["resource.kubernetes.io"].pciBusID == "0000:df:00.0"'}}]}}]}}
"""


def specs(cdi: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_bytes()) for path in cdi.iterdir() if path.suffix == ".json"}


def held(state: Path) -> dict[str, list[str]]:
    """Return the devices of each prepared claim, as an earlier agent reads them; none while a record is written."""
    try:
        claims = read_state(state).claims.values()
    except ValueError:
        return {}
    return {claim.name: [one.device for one in claim.payload.devices] for claim in claims if claim.state == "completed"}


def readable(value: Any) -> Any:
    """Return a state as dictionaries and lists, without the attributes that earlier versions do not know."""
    plain = msgspec.to_builtins(value)

    def known(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: known(item) for key, item in one.items() if key not in NEW}
        return [known(item) for item in one] if isinstance(one, list | tuple) else one

    return known(plain)


def apply(state: Path, file: Path) -> None:
    """Apply objects. On a slow machine, the command may return before all claims are prepared."""
    command = ["claim", "apply", "-f", str(file), "--state-dir", str(state)]
    result = preloaded.run(command, env=dict(os.environ), cwd=state.parent)
    assert "created" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("commit", [FIRST, LAST])
def test_an_earlier_version_reads_what_this_one_writes(start: Start, tmp_path: Path, state: Path, commit: str) -> None:
    """Both versions write the same for the same claims, so far as the earlier one reads it, but for new attributes."""
    restore(commit, tmp_path / "earlier-state", tmp_path / "earlier-cdi", tmp_path / "config.toml")
    agent = start(*HOST, "--config", str(tmp_path / "config.toml")).ready()
    apply(state, EARLIER / "claims.yaml")
    expected = {name: [device] for name, device in HELD.items()}
    eventually(lambda: held(state) == expected, agent.log_text)
    assert agent.end() == 0
    written, earlier = (readable(read_state(folder)) for folder in (state, tmp_path / "earlier-state"))
    for field in State.__struct_fields__:
        assert written[field] == earlier[field], field


# === With the program of the earlier version (make test-earlier) ===


class EarlierVersion:
    """The earlier program on a state directory."""

    def __init__(self, directory: Path) -> None:
        if not os.environ.get(REQUESTED):
            pytest.skip("needs the program of an earlier version: make test-earlier")
        self._command = PROGRAM
        self._directory = directory
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}

    def call(self, *arguments: str, check: bool = True) -> str:
        command = [str(self._command), *arguments]
        result = subprocess.run(
            command, cwd=self._directory, env=self._environment, capture_output=True, text=True, check=False
        )
        assert not check or result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
        return result.stdout

    @contextmanager
    def run(self, *flags: str) -> Iterator[AgentProcess]:
        """Run its agent, and stop it as systemd does."""
        log = self._directory / f"earlier-log-{len(list(self._directory.glob('earlier-log-*')))}"
        with log.open("w") as file:
            command = [str(self._command), "run", *flags]
            process = subprocess.Popen(command, stdout=file, stderr=file, text=True, env=self._environment)
        agent = AgentProcess(process, log)
        try:
            agent.wait_for(r"info ready")
            yield agent
            assert agent.end(signal.SIGTERM) == 0, agent.log_text()
        finally:
            process.kill()
            process.wait()


def phases(earlier: EarlierVersion, state: Path) -> dict[str, str]:
    """Return the phase of each claim, as the earlier agent reports it."""
    listed = json.loads(earlier.call("claim", "list", "-o", "json", "--state-dir", str(state)))
    return {claim["name"]: claim["phase"] for claim in listed}


def test_claims_survive_an_upgrade_and_a_downgrade(start: Start, tmp_path: Path, state: Path) -> None:
    cdi, config = tmp_path / "cdi", tmp_path / "config.toml"
    restore(LAST, tmp_path / "unused-state", tmp_path / "unused-cdi", config)
    earlier = EarlierVersion(tmp_path)
    flags = ("--standalone", *HOST, "--state-dir", str(state), "--cdi-dir", str(cdi), "--config", str(config))
    expected = {name: [device] for name, device in HELD.items()}
    (tmp_path / "later.yaml").write_text(LATER)
    with earlier.run(*flags) as agent:
        earlier.call("claim", "apply", "-f", str(EARLIER / "claims.yaml"), "--state-dir", str(state), check=False)
        eventually(lambda: held(state) == expected, agent.log_text)
    before = specs(cdi)
    # Each version has its own format of simulated hosts. The hardware of a real host stays as it is.
    shutil.rmtree(state / "simulated")
    upgraded = start(*HOST, "--config", str(config)).ready()
    assert cdi_names(specs(cdi)) == cdi_names(before)
    apply(state, tmp_path / "later.yaml")
    expected["later"] = ["gpu-0000-df-00-0"]
    prepared = dict.fromkeys(expected, "Prepared") | {"waits": "Pending"}
    eventually(lambda: held(state) == expected, upgraded.log_text)
    assert upgraded.end() == 0
    between = specs(cdi)
    shutil.rmtree(state / "simulated")
    with earlier.run(*flags) as agent:
        assert held(state) == expected
        assert cdi_names(specs(cdi)) == cdi_names(between)
        # The simulated host is a new one: the binding of a driver and the MIG instance are made again, in turn.
        eventually(lambda: phases(earlier, state) == prepared, agent.log_text)
        earlier.call("claim", "delete", *sorted(expected), "--state-dir", str(state))
        eventually(lambda: held(state) == {"waits": expected["whole"]}, agent.log_text)
        earlier.call("claim", "delete", "waits", "--state-dir", str(state))
        assert not specs(cdi)
    assert not [record for kind in ("mig", "vfio", "timeslice") for record in (state / kind).iterdir()]
    assert not list(state.rglob("*.corrupt-*"))


def test_both_versions_adopt_the_slices_of_the_other(
    start: Start, fake_api: FakeApi, tmp_path: Path, state: Path, kubelet_dir: Path
) -> None:
    """They publish the same for the host, so none of them writes a slice of the other."""
    fake_api.put("nodes", NODE)
    kubernetes = connection(fake_api, tmp_path, kubelet_dir)
    earlier = EarlierVersion(tmp_path)
    flags = (*HOST, "--state-dir", str(state), "--cdi-dir", str(tmp_path / "cdi"), *kubernetes)
    with earlier.run(*flags) as agent:
        eventually(lambda: are_published(agent), agent.log_text)
    created = slice_writes(fake_api)
    assert {method for method, _ in created} == {"POST"}
    shutil.rmtree(state / "simulated")
    upgraded = start("--no-standalone", *HOST, *kubernetes).ready()
    eventually(lambda: are_published(upgraded), upgraded.log_text)
    assert upgraded.end() == 0
    assert slice_writes(fake_api) == created
    shutil.rmtree(state / "simulated")
    with earlier.run(*flags) as agent:
        eventually(lambda: are_published(agent), agent.log_text)
    assert slice_writes(fake_api) == created
