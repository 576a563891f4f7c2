"""Slices of a GPU on a real cluster whose agent is killed while it makes one or destroys one.

Nothing is leaked, and nothing is held twice. Every call that changes the GPU is tried, before it has its effect and
after, with a kubelet that asks again; tests/agent/test_mig_killed.py tries what lies between the calls as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from dra_agent.simulate import mig

ADDRESS = "0000:1b:00.0"
CONFIG = f"""\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID == "{ADDRESS}"']

[[inventory.partition]]
mode = "mig"
when = 'device.attributes["{DRIVER}"].type == "gpu"'
"""
GI, CI = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"
MODE = "nvmlDeviceSetMigMode"
NO_CI, NO_GI = "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"
When = Literal["before", "after"]


@pytest.fixture
def agent(start_agent: StartAgent, tmp_path: Path) -> Agent:
    (tmp_path / "agent.toml").write_text(CONFIG)
    return start_agent("node-a", "dgx-h100", "--config", str(tmp_path / "agent.toml"))


def make(namespace: Namespace, name: str, profile: str) -> None:
    namespace.claim(name, request("gpu", "mig", f'device.attributes["{DRIVER}"].profile == "{profile}"'))
    namespace.pod(name, claim=name)


def order_kill(agent: Agent, function: str, when: When) -> None:
    agent.simulate("kill", function, "--device", ADDRESS, "--agent", *(["--after"] if when == "after" else []))


def start_again(agent: Agent) -> None:
    until(lambda: not agent.process.running, "the agent is killed in the call")
    agent.simulate("clear")
    agent.start().ready()


def slices(agent: Agent) -> dict[str, range]:
    """Say what exists: memory slices by UUID. No two share one, and none is without what computes there."""
    (division,) = mig.read(agent.host).values()
    assert all(len(one.compute_instances) == 1 for one in division.gpu_instances)
    found = {one.compute_instances[0].uuid: range(one.start, one.start + one.size) for one in division.gpu_instances}
    taken = [number for place in found.values() for number in place]
    assert len(taken) == len(set(taken)), found
    folders = (agent.host / "proc/driver/nvidia/capabilities/gpu0").rglob("access")
    assert len(list(folders)) == 2 * len(found), "what the driver shows is what exists"
    return found


def uuid(namespace: Namespace, pod: str) -> str:
    """What its container was told."""
    (result,) = namespace.results(pod)
    return namespace.environment(pod)[f"DRA_AGENT_DEVICE_{result['device'].replace('-', '_').upper()}_UUID"]


def nothing_is_left(agent: Agent) -> None:
    until(lambda: slices(agent) == {}, "every instance is destroyed")
    assert not list((agent.state_dir / "mig").glob("*"))
    assert not agent.node.cdi_files()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", [GI, CI])
def test_killed_while_it_makes_a_slice(agent: Agent, namespace: Namespace, function: str, when: When) -> None:
    make(namespace, "stays", "3g.40gb")
    namespace.running("stays")
    stays = uuid(namespace, "stays")
    order_kill(agent, function, when)
    make(namespace, "new", "1g.10gb")
    start_again(agent)
    namespace.running("new")
    assert set(slices(agent)) == {stays, uuid(namespace, "new")}, "each has its own, and nothing else exists"
    for name in ("stays", "new"):
        namespace.delete_pod(name)
    namespace.gone("stays", "new")
    nothing_is_left(agent)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_switches_mig_mode_on(agent: Agent, namespace: Namespace, when: When) -> None:
    order_kill(agent, MODE, when)
    make(namespace, "first", "1g.10gb")
    start_again(agent)
    namespace.running("first")
    assert set(slices(agent)) == {uuid(namespace, "first")}
    namespace.delete_pod("first")
    namespace.gone("first")
    nothing_is_left(agent)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", [NO_CI, NO_GI])
def test_killed_while_it_destroys_a_slice(agent: Agent, namespace: Namespace, function: str, when: When) -> None:
    for name, profile in (("stays", "3g.40gb"), ("goes", "1g.10gb")):
        make(namespace, name, profile)
    namespace.running("stays", "goes")
    stays = uuid(namespace, "stays")
    order_kill(agent, function, when)
    namespace.delete_pod("goes")
    start_again(agent)
    namespace.gone("goes")
    until(lambda: set(slices(agent)) == {stays}, "what the pod had is destroyed, and nothing else")
    make(namespace, "next", "1g.10gb")
    namespace.running("next")
    assert set(slices(agent)) == {stays, uuid(namespace, "next")}, "its place can be had again"
    for name in ("stays", "next"):
        namespace.delete_pod(name)
    namespace.gone("stays", "next")
    nothing_is_left(agent)
