"""An agent is killed while it moves an interface to a container: the next agent completes the move."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.conftest import AgentProcess, Start
from device_setup.moved_nic import addresses, ip, links, network
from device_setup.test_net_move import pytestmark
from dra_agent.cli.main import main

__all__ = ["pytestmark"]

EXAMPLES = Path(__file__).parents[2] / "examples"
NIC = "ens6np0"
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: net, namespace: default}
spec:
  devices:
    requests:
    - name: nic
      exactly:
        deviceClassName: rdma-nic
        selectors: [{cel: {expression: 'device.attributes["dra-agent.internal"].ifName == "ens6np0"'}}]
    config:
    - requests: [nic]
      opaque:
        driver: dra-agent.internal
        parameters:
          apiVersion: dra-agent.internal/v1
          kind: NicConfig
          interface: {name: net1, addresses: [192.0.2.7/24]}
"""


@pytest.fixture
def interface_name() -> Iterator[str]:
    """The interface name of the simulated NIC; one test of this network namespace uses it at a time."""
    # Not a temporary file: pytest workers can have different temporary directories.
    with Path("/proc/self/ns/net").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield NIC


@pytest.fixture
def prepared_claim(
    interface_name: str, start: Start, state: Path, tmp_path: Path
) -> Iterator[tuple[AgentProcess, list[str]]]:
    """An agent and the hook command of a prepared claim; a veth interface has the name of the NIC."""
    agent = start("--simulate", "dgx-h100").ready()
    hardware = (state / "simulated/dgx-h100/sys/class/net" / interface_name / "address").read_text().strip()
    ip("link", "delete", "dra-killed", check=False)  # of a run that was killed
    ip("link", "add", interface_name, "address", hardware, "type", "veth", "peer", "name", "dra-killed")
    try:
        for name in (interface_name, "dra-killed"):
            ip("link", "set", name, "up")
        file = tmp_path / "claim.yaml"
        file.write_text(CLAIM)
        for path in (EXAMPLES / "classes/nics.yaml", file):
            assert main(["claim", "apply", "--state-dir", str(state), "-f", str(path)]) == 0
        (spec,) = (tmp_path / "cdi").glob("*.json")
        (device,) = json.loads(spec.read_text())["devices"]
        (hook,) = device["containerEdits"]["hooks"]
        yield agent, [hook["path"], *hook["args"][1:]]
    finally:
        for name in (interface_name, "dra-killed"):
            ip("link", "delete", name, check=False)


@pytest.mark.parametrize("delay_s", [0.0, 0.3, 0.6])
def test_a_move_is_completed_after_sigkill_at_any_moment(
    start: Start, state: Path, prepared_claim: tuple[AgentProcess, list[str]], delay_s: float
) -> None:
    agent, hook = prepared_claim
    with network() as pod:
        hook_input = json.dumps({"pid": pod})
        with subprocess.Popen(hook, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as first:
            assert first.stdin is not None
            first.stdin.write(hook_input)
            first.stdin.close()
            time.sleep(delay_s)
            agent.end(signal.SIGKILL)
            start("--simulate", "dgx-h100").ready()
            first.wait(60)  # the hook may time out before the agent runs; the kubelet then starts the container again
        for _ in range(2):
            result = subprocess.run(hook, input=hook_input, capture_output=True, text=True, timeout=120, check=False)
            assert (result.returncode, result.stderr) == (0, "")
            link = links(pod)["net1"]
            assert addresses(link) == ["192.0.2.7/24"] and "UP" in link["flags"]
        (note,) = (state / "net").glob("*.json")
        assert json.loads(note.read_text())["complete"] is True
