"""MIG partitions on a real cluster whose agent is killed during their creation or destruction.

Nothing is leaked, and no partition has two holders. Every NVML call that changes the GPU is a kill point, before and
after its effect, with a kubelet that retries; tests/agent/test_mig_killed.py covers the points between the calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from dra_simulate import mig

ADDRESS = "0000:1b:00.0"
CONFIG = f"""\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID == "{ADDRESS}"']

[[inventory.partition]]
mode = "mig"
when = 'device.attributes["{DRIVER}"].type == "gpu"'
"""
CREATE_GI, CREATE_CI = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"
SET_MIG_MODE = "nvmlDeviceSetMigMode"
DESTROY_CI, DESTROY_GI = "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"
When = Literal["before", "after"]


@pytest.fixture
def agent(start_agent: StartAgent, tmp_path: Path) -> Agent:
    (tmp_path / "agent.toml").write_text(CONFIG)
    return start_agent("node-a", "dgx-h100", "--config", str(tmp_path / "agent.toml"))


def create_pod(namespace: Namespace, name: str, profile: str) -> None:
    namespace.claim(name, request("gpu", "mig", f'device.attributes["{DRIVER}"].profile == "{profile}"'))
    namespace.pod(name, claim=name)


def schedule_kill(agent: Agent, function: str, when: When) -> None:
    agent.simulate("kill", function, "--device", ADDRESS, "--agent", *(["--after"] if when == "after" else []))


def restart_after_kill(agent: Agent) -> None:
    until(lambda: not agent.process.running, "the agent is killed in the call")
    agent.simulate("clear")
    agent.start().ready()


def slices(agent: Agent) -> dict[str, range]:
    """Return the memory slices of each instance by UUID. They do not overlap, and each has a compute instance."""
    (division,) = mig.read(agent.host).values()
    assert all(len(one.compute_instances) == 1 for one in division.gpu_instances)
    found = {one.compute_instances[0].uuid: range(one.start, one.start + one.size) for one in division.gpu_instances}
    used_slices = [number for span in found.values() for number in span]
    assert len(used_slices) == len(set(used_slices)), found
    folders = (agent.host / "proc/driver/nvidia/capabilities/gpu0").rglob("access")
    assert len(list(folders)) == 2 * len(found), "the capability files match the instances"
    return found


def uuid(namespace: Namespace, pod: str) -> str:
    """Return the UUID in the environment of the container."""
    (result,) = namespace.results(pod)
    return namespace.environment(pod)[f"DRA_AGENT_DEVICE_{result['device'].replace('-', '_').upper()}_UUID"]


def wait_until_nothing_left(agent: Agent) -> None:
    until(lambda: slices(agent) == {}, "every instance is destroyed")
    assert not list((agent.state_dir / "mig").glob("*"))
    assert not agent.node.cdi_files()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", [CREATE_GI, CREATE_CI])
def test_agent_killed_while_creating_a_partition(agent: Agent, namespace: Namespace, function: str, when: When) -> None:
    create_pod(namespace, "stays", "3g.40gb")
    namespace.running("stays")
    stays = uuid(namespace, "stays")
    schedule_kill(agent, function, when)
    create_pod(namespace, "new", "1g.10gb")
    restart_after_kill(agent)
    namespace.running("new")
    assert set(slices(agent)) == {stays, uuid(namespace, "new")}, "each pod has its partition, and no other exists"
    for name in ("stays", "new"):
        namespace.delete_pod(name)
    namespace.wait_until_deleted("stays", "new")
    wait_until_nothing_left(agent)


@pytest.mark.parametrize("when", ["before", "after"])
def test_agent_killed_while_enabling_mig_mode(agent: Agent, namespace: Namespace, when: When) -> None:
    schedule_kill(agent, SET_MIG_MODE, when)
    create_pod(namespace, "first", "1g.10gb")
    restart_after_kill(agent)
    namespace.running("first")
    assert set(slices(agent)) == {uuid(namespace, "first")}
    namespace.delete_pod("first")
    namespace.wait_until_deleted("first")
    wait_until_nothing_left(agent)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", [DESTROY_CI, DESTROY_GI])
def test_agent_killed_while_destroying_a_partition(
    agent: Agent, namespace: Namespace, function: str, when: When
) -> None:
    for name, profile in (("stays", "3g.40gb"), ("goes", "1g.10gb")):
        create_pod(namespace, name, profile)
    namespace.running("stays", "goes")
    stays = uuid(namespace, "stays")
    schedule_kill(agent, function, when)
    namespace.delete_pod("goes")
    restart_after_kill(agent)
    namespace.wait_until_deleted("goes")
    until(lambda: set(slices(agent)) == {stays}, "only the partition of the deleted pod is destroyed")
    create_pod(namespace, "next", "1g.10gb")
    namespace.running("next")
    assert set(slices(agent)) == {stays, uuid(namespace, "next")}, "its placement is available again"
    for name in ("stays", "next"):
        namespace.delete_pod(name)
    namespace.wait_until_deleted("stays", "next")
    wait_until_nothing_left(agent)
