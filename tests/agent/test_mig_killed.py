"""A real agent is killed in each step of making and destroying a MIG partition, and started again: what claims hold is
there, and theirs alone; what nobody holds is gone from NVML, the driver's folders, the device nodes, the CDI directory
and the agent's notes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from dra_agent import simulate
from dra_agent.simulate import inject, mig, nvml
from eventually import eventually

from .conftest import AgentProcess, Start

When = Literal["before", "after"]
ADDRESS = "0000:1b:00.0"
# One GPU is offered, so that every claim is about it.
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
      expression: device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"
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

MAKING = ("nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance")
DESTROYING = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")
STEPS: tuple[When, When] = ("before", "after")


def of_profile(name: str) -> str:
    profile = 'device.attributes["dra-agent.internal"].profile'
    return f"""'has({profile}) && {profile} == "{name}"'"""


class Node:
    """The directory of one agent after another, on one simulated DGX H100."""

    def __init__(self, start: Start, state: Path, folder: Path) -> None:
        self.host = state / "simulated" / "dgx-h100"
        simulate.build("dgx-h100", self.host)
        self.uuid = next(gpu.uuid for gpu in nvml.read(self.host / "lib").devices if gpu.pci.address == ADDRESS)
        self._start, self._state, self._folder = start, state, folder
        self._config = folder / "mig.toml"
        self._config.write_text(CONFIG)
        (folder / "class.yaml").write_text(CLASS)
        self.agent = self.start()
        assert self.cli("claim", "apply", "-f", str(folder / "class.yaml")) == ""

    def start(self) -> AgentProcess:
        flags = ("--simulate", "dgx-h100", "--config", str(self._config))
        self.agent = self._start(*flags, environment={"PYTHONFAULTHANDLER": "1"}).ready()
        return self.agent

    def where_it_is(self) -> str:
        """Give the agent's log with what each of its threads does; ends it."""
        if self.agent.process.poll() is None:
            self.agent.end(signal.SIGABRT)
        return self.agent.said()

    def cli(self, *arguments: str) -> str:
        """Run a command; gives what it says where it fails, and "" where it does not."""
        done = self._run(*arguments)
        return "" if done.returncode == 0 else done.stderr or f"exit code {done.returncode}"

    def apply(self, name: str, expression: str) -> str:
        path = self._folder / f"{name}.yaml"
        path.write_text(CLAIM.format(name=name, expression=expression))
        return self.cli("claim", "apply", "-f", str(path))

    def claim(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._run("claim", "get", "-n", "team", name, "-o", "json").stdout)
        return found

    def prepared(self, name: str) -> str:
        """Wait for a claim; gives the UUID that its container is told, of what is then the claim's own."""
        assert self.cli("claim", "wait", "-n", "team", name, "--timeout", "40") == "", self.where_it_is()
        uid = self.claim(name)["uid"]
        (spec,) = [path for path in (self._folder / "cdi").glob("*.json") if uid in path.name]
        told = re.findall(r'"DRA_AGENT_DEVICE_[A-Z0-9_]+_UUID=(MIG-[0-9a-f-]+)"', spec.read_text())
        (uuid,) = set(told)
        nodes = set(re.findall(r"nvidia-cap(\d+)", spec.read_text()))
        assert len(nodes) == 2 and all((self.host / f"dev/nvidia-caps/nvidia-cap{node}").exists() for node in nodes)
        return str(uuid)

    def killed(self, act: Callable[[], object], function: str, when: When) -> None:
        """Act on an agent that is killed in a call, and start the next one."""
        inject.kill(self.host, function, ADDRESS, whom="agent", when=when)
        act()
        assert self.agent.process.wait(60) == -signal.SIGKILL, self.agent.said()
        # What is ordered once has happened; a call that came too late to meet it is not to meet it later.
        assert [fault.times for fault in nvml.read(self.host / "lib").faults] == [0]
        inject.clear(self.host)
        self.start()

    def gone(self, name: str) -> None:
        """Give a claim back, whatever is known of that already."""

        def gone() -> bool:
            self.cli("claim", "delete", "-n", "team", name)
            return name not in [one["name"] for one in json.loads(self._run("claim", "list", "-o", "json").stdout)]

        eventually(gone, self.agent.said)

    def stands(self) -> dict[str, tuple[int, int]]:
        """Say what exists of the GPU: first memory slice and size by UUID, having seen that all places agree on it."""
        division = mig.read(self.host).get(self.uuid, mig.GpuPartitioning())
        instances = division.gpu_instances
        slices = [number for one in instances for number in range(one.start, one.start + one.size)]
        assert len(slices) == len(set(slices)), "two instances hold one memory slice"
        folders = {
            str(path.parent.relative_to(self.host / "proc/driver/nvidia/capabilities/gpu0/mig"))
            for path in (self.host / "proc/driver/nvidia/capabilities/gpu0").rglob("access")
        }
        computes = {f"gi{one.id}/ci{part.id}" for one in instances for part in one.compute_instances}
        assert folders == {f"gi{one.id}" for one in instances} | computes
        nodes = list((self.host / "dev/nvidia-caps").iterdir())
        assert len(nodes) == 2 + len(folders), "`config`, `monitor`, and what belongs to the instances"
        assert all(len(one.compute_instances) == 1 for one in instances), "no instance without what computes in it"
        return {one.compute_instances[0].uuid: (one.start, one.size) for one in instances}

    def nothing_is_left(self) -> None:
        eventually(lambda: not self.stands(), self.agent.said)
        assert list((self._folder / "cdi").glob("*.json")) == []
        assert list((self._state / "mig").glob("*.json")) == []

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        variables["DRA_AGENT_STATE_DIR"] = str(self._state)
        command = [sys.executable, "-m", "dra_agent", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, check=False)


@pytest.fixture
def node(start: Start, state: Path, tmp_path: Path) -> Node:
    return Node(start, state, tmp_path)


@pytest.mark.parametrize("when", STEPS)
def test_killed_in_each_step_of_making_a_partition(node: Node, when: When) -> None:
    for number, function in enumerate(MAKING):
        name = f"claim-{number}"
        before = node.stands()
        node.killed(partial(node.apply, name, of_profile("1g.10gb")), function, when)
        uuid = node.prepared(name)
        after = node.stands()
        assert set(after) - set(before) == {uuid}, "one more, and it is the claim's"
        assert before.items() <= after.items(), "those of others are as they were"
    assert len(node.stands()) == len(MAKING)
    for number in range(len(MAKING)):
        node.gone(f"claim-{number}")
    node.nothing_is_left()


@pytest.mark.parametrize("when", STEPS)
def test_killed_in_each_step_of_destroying_a_partition(node: Node, when: When) -> None:
    assert node.apply("stays", of_profile("3g.40gb")) == ""
    stays = node.prepared("stays")
    for number, function in enumerate(DESTROYING):
        name = f"claim-{number}"
        assert node.apply(name, of_profile("2g.20gb")) == ""
        node.prepared(name)
        node.killed(partial(node.cli, "claim", "delete", "-n", "team", name), function, when)
        node.gone(name)
        assert set(node.stands()) == {stays}
    assert node.prepared("stays") == stays
    node.gone("stays")
    node.nothing_is_left()
    assert node.apply("whole", WHOLE) == "", "and the GPU can be had as a whole again"
    assert not mig.read(node.host)[node.uuid].mode


def test_killed_again_while_a_claim_stands(node: Node) -> None:
    """Killed while it makes a partition, and killed again while the next one goes on with it."""
    node.killed(lambda: node.apply("first", of_profile("1g.10gb")), MAKING[1], "after")
    first = node.prepared("first")
    node.agent.end(signal.SIGKILL)
    node.start()
    assert node.prepared("first") == first
    assert set(node.stands()) == {first}
    node.gone("first")
    node.nothing_is_left()


@pytest.mark.parametrize("function", [MAKING[2], DESTROYING[1]])
def test_a_library_that_crashes_in_a_step_takes_no_claim_along(node: Node, function: str) -> None:
    inject.kill(node.host, function, ADDRESS, whom="library")
    node.apply("first", of_profile("1g.10gb"))
    first = node.prepared("first")
    assert set(node.stands()) == {first}
    node.gone("first")
    assert node.agent.process.poll() is None
    assert [fault.times for fault in nvml.read(node.host / "lib").faults] == [0]
    node.nothing_is_left()
