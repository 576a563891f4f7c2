"""A real agent is killed in each step of creating and destroying a MIG partition, and restarted.

Partitions of prepared claims exist exactly once. All others are gone from NVML, the capability directories, the device
nodes, the CDI directory and the state files of the agent.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import dra_simulate
import preloaded
from dra_simulate import inject, mig, nvml
from eventually import eventually

from .conftest import AgentProcess, Start

When = Literal["before", "after"]
# A fault in the simulated library kills the parent of the process that has loaded it.
pytestmark = pytest.mark.usefixtures("real_children")

ADDRESS = "0000:11:00.0"
# The configuration partitions one GPU, and every claim selects it.
CONFIG = f"""
[[inventory.partition]]
mode = "mig"
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{ADDRESS}"'
"""
CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: of-one-gpu
spec:
  selectors:
  - cel:
      expression: device.attributes["resource.kubernetes.io"].pciBusID == "0000:11:00.0"
"""
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: {name}
  namespace: team
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: of-one-gpu
        selectors:
        - cel:
            expression: {expression}
"""
WHOLE = """'device.attributes["dra-agent.internal"].type == "gpu"'"""

CREATE_CALLS = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
)
DESTROY_CALLS = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")
STEPS: tuple[When, When] = ("before", "after")


def of_profile(name: str) -> str:
    profile = 'device.attributes["dra-agent.internal"].profile'
    return f"""'has({profile}) && {profile} == "{name}"'"""


class Node:
    """Successive agents on one state directory and one simulated server with H100."""

    def __init__(self, start: Start, state: Path, folder: Path) -> None:
        self.host = state / "simulated" / "h100-pcie"
        dra_simulate.build("h100-pcie", self.host)
        self.uuid = next(gpu.uuid for gpu in nvml.read(self.host / "lib").devices if gpu.pci.address == ADDRESS)
        self._start, self._state, self._folder = start, state, folder
        self._config = folder / "mig.toml"
        self._config.write_text(CONFIG)
        (folder / "class.yaml").write_text(CLASS)
        self.agent = self.start()
        assert self.cli("claim", "apply", "-f", str(folder / "class.yaml")) == ""

    def start(self) -> AgentProcess:
        flags = ("--simulate", "h100-pcie", "--config", str(self._config))
        self.agent = self._start(*flags, patch="import faulthandler; faulthandler.enable()").ready()
        return self.agent

    def dump_threads(self) -> str:
        """Return the log of the agent with the stacks of its threads; this ends the agent."""
        if self.agent.process.poll() is None:
            self.agent.end(signal.SIGABRT)
        return self.agent.log_text()

    def cli(self, *arguments: str) -> str:
        """Run a command, and return its error message, or "" if it succeeds."""
        result = self._run(*arguments)
        return "" if result.returncode == 0 else result.stderr or f"exit code {result.returncode}"

    def apply(self, name: str, expression: str) -> str:
        path = self._folder / f"{name}.yaml"
        path.write_text(CLAIM.format(name=name, expression=expression))
        return self.cli("claim", "apply", "-f", str(path))

    def claim(self, name: str) -> dict[str, Any]:
        claim_: dict[str, Any] = json.loads(self._run("claim", "get", "-n", "team", name, "-o", "json").stdout)
        return claim_

    def prepared(self, name: str) -> str:
        """Wait until a claim is prepared, check its device nodes, and return the MIG UUID in its CDI spec."""
        assert self.cli("claim", "wait", "-n", "team", name, "--timeout", "40") == "", self.dump_threads()
        uid = self.claim(name)["uid"]
        (spec,) = [path for path in (self._folder / "cdi").glob("*.json") if uid in path.name]
        uuids = re.findall(r'"DRA_AGENT_DEVICE_[A-Z0-9_]+_UUID=(MIG-[0-9a-f-]+)"', spec.read_text())
        (uuid,) = set(uuids)
        nodes = set(re.findall(r"nvidia-cap(\d+)", spec.read_text()))
        assert len(nodes) == 2 and all((self.host / f"dev/nvidia-caps/nvidia-cap{node}").exists() for node in nodes)
        return str(uuid)

    def kill_during(self, act: Callable[[], object], function: str, when: When) -> None:
        """Act on an agent that is killed in a call, and start the next agent."""
        inject.kill(self.host, function, ADDRESS, process="agent", when=when)
        act()
        assert self.agent.process.wait(60) == -signal.SIGKILL, self.agent.log_text()
        # The ordered fault has happened; clearing it prevents that a late call meets it.
        assert [fault.times for fault in nvml.read(self.host / "lib").faults] == [0]
        inject.clear(self.host)
        self.start()

    def delete_until_gone(self, name: str) -> None:
        """Delete a claim until it is no longer listed."""

        def is_gone() -> bool:
            self.cli("claim", "delete", "-n", "team", name)
            return name not in [
                claim_["name"] for claim_ in json.loads(self._run("claim", "list", "-o", "json").stdout)
            ]

        eventually(is_gone, self.agent.log_text)

    def gpu_instances(self) -> dict[str, tuple[int, int]]:
        """Return first memory slice and size by MIG UUID, after checking that all places agree."""
        division = mig.read(self.host).get(self.uuid, mig.GpuPartitioning())
        instances = division.gpu_instances
        slices = [number for instance in instances for number in range(instance.start, instance.start + instance.size)]
        assert len(slices) == len(set(slices)), "two instances have the same memory slice"
        folders = {
            str(path.parent.relative_to(self.host / "proc/driver/nvidia/capabilities/gpu0/mig"))
            for path in (self.host / "proc/driver/nvidia/capabilities/gpu0").rglob("access")
        }
        computes = {
            f"gi{instance.id}/ci{compute.id}" for instance in instances for compute in instance.compute_instances
        }
        assert folders == {f"gi{instance.id}" for instance in instances} | computes
        nodes = list((self.host / "dev/nvidia-caps").iterdir())
        assert len(nodes) == 2 + len(folders), "`config`, `monitor`, and the nodes of the instances"
        assert all(len(instance.compute_instances) == 1 for instance in instances), (
            "every GPU instance has a compute instance"
        )
        return {instance.compute_instances[0].uuid: (instance.start, instance.size) for instance in instances}

    def assert_nothing_left(self) -> None:
        eventually(lambda: not self.gpu_instances(), self.agent.log_text)
        assert list((self._folder / "cdi").glob("*.json")) == []
        assert list((self._state / "mig").glob("*.json")) == []

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        variables["DRA_AGENT_STATE_DIR"] = str(self._state)
        return preloaded.run(arguments, env=variables)


@pytest.fixture
def node(start: Start, state: Path, tmp_path: Path) -> Node:
    return Node(start, state, tmp_path)


@pytest.mark.parametrize("when", STEPS)
def test_sigkill_in_each_step_of_creating_a_partition(node: Node, when: When) -> None:
    for number, function in enumerate(CREATE_CALLS):
        name = f"claim-{number}"
        before = node.gpu_instances()
        node.kill_during(partial(node.apply, name, of_profile("1g.10gb")), function, when)
        uuid = node.prepared(name)
        after = node.gpu_instances()
        assert set(after) - set(before) == {uuid}, "one new partition, and it belongs to the claim"
        assert before.items() <= after.items(), "partitions of other claims are unchanged"
    assert len(node.gpu_instances()) == len(CREATE_CALLS)
    for number in range(len(CREATE_CALLS)):
        node.delete_until_gone(f"claim-{number}")
    node.assert_nothing_left()


@pytest.mark.parametrize("when", STEPS)
def test_sigkill_in_each_step_of_destroying_a_partition(node: Node, when: When) -> None:
    assert node.apply("stays", of_profile("3g.40gb")) == ""
    stays = node.prepared("stays")
    for number, function in enumerate(DESTROY_CALLS):
        name = f"claim-{number}"
        assert node.apply(name, of_profile("2g.20gb")) == ""
        node.prepared(name)
        node.kill_during(partial(node.cli, "claim", "delete", "-n", "team", name), function, when)
        node.delete_until_gone(name)
        assert set(node.gpu_instances()) == {stays}
    assert node.prepared("stays") == stays
    node.delete_until_gone("stays")
    node.assert_nothing_left()
    assert node.apply("whole", WHOLE) == "", "the whole GPU can be allocated again"
    assert not mig.read(node.host)[node.uuid].mode


def test_a_second_sigkill_during_the_recovery(node: Node) -> None:
    """The agent is killed while it creates a partition, and again after the next agent has completed it."""
    node.kill_during(lambda: node.apply("first", of_profile("1g.10gb")), CREATE_CALLS[1], "after")
    first = node.prepared("first")
    node.agent.end(signal.SIGKILL)
    node.start()
    assert node.prepared("first") == first
    assert set(node.gpu_instances()) == {first}
    node.delete_until_gone("first")
    node.assert_nothing_left()


@pytest.mark.parametrize("function", [CREATE_CALLS[2], DESTROY_CALLS[1]])
def test_a_library_crash_in_a_step_loses_no_claim(node: Node, function: str) -> None:
    inject.kill(node.host, function, ADDRESS, process="library")
    node.apply("first", of_profile("1g.10gb"))
    first = node.prepared("first")
    assert set(node.gpu_instances()) == {first}
    node.delete_until_gone("first")
    assert node.agent.process.poll() is None
    assert [fault.times for fault in nvml.read(node.host / "lib").faults] == [0]
    node.assert_nothing_left()
