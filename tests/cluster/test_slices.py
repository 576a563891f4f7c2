"""Published slices while kubelets, agents, devices and API servers start, stop and change."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.kube import build
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import NODES, SLICES, ApiStatusError, Object
from cluster.kube.cluster import Cluster, running
from cluster.kube.process import LONG_TIMEOUT_S, until
from cluster.kube.slice_recorder import Event, SliceWatch
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
AGENT_SLICES = {"spec.driver": DRIVER}
GPU = "0000:52:00.0"
QUIET_S = 3.0
"""Seconds after which a pending write would have been observed."""


def test_slices_are_published_and_owned_by_the_node(cluster: Cluster, start_agent: StartAgent) -> None:
    agents = [start_agent("node-a", "dgx-h100"), start_agent("node-b", "mixed")]
    for agent in agents:
        node = cluster.api.get(NODES, agent.node.name)["metadata"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"], "controller": True}
        for item in agent.slices():
            assert item["metadata"]["ownerReferences"] == [owner]
            assert item["spec"]["nodeName"] == node["name"]
            assert item["spec"]["pool"]["generation"] == 1
    assert sorted(agents[0].pools()) == ["node-a/gpu", "node-a/nic"]
    assert {len(slices) for slices in agents[0].pools().values()} == {1}
    assert sum(name.startswith("gpu-") for name in agents[0].devices()) == 8
    vendors = {value for device in agents[1].devices().values() for value in device["attributes"]["vendor"].values()}
    assert {"nvidia", "amd", "intel"} <= vendors
    # The API server keeps every field: nothing is dropped, and nothing is written twice.
    assert not [item for agent in agents for item in agent.slices() if item["metadata"]["generation"] > 1]


def test_slices_deleted_by_the_kubelet_are_back_within_2_s(start_agent: StartAgent) -> None:
    agent = start_agent("node-a", "dgx-h100")
    other_agent = start_agent("node-b", "vm-1gpu")
    other_slices = other_agent.slices()
    before = {item["metadata"]["uid"]: item["spec"]["devices"] for item in agent.slices()}
    with SliceWatch(agent.node.api, AGENT_SLICES) as watch:
        agent.node.restart_kubelet()
        until(lambda: len(watch.of("DELETED")) == len(before), "the kubelet wipes the slices")
        until(lambda: len(watch.of("ADDED")) == len(before), "the slices are published again")
        until(agent.pools_are_complete, "the pools are complete")
    slowdown = agent.node.api.slowdown()
    deleted, added = watch.of("DELETED"), watch.of("ADDED")
    assert {event.object["metadata"]["uid"] for event in deleted} == set(before)
    for event in deleted:
        again = next(other for other in added if other.object["spec"]["pool"]["name"] == pool_of(event))
        assert again.at - event.at < 2.0 * slowdown
    assert sorted(map(str, before.values())) == sorted(str(event.object["spec"]["devices"]) for event in added)
    assert other_agent.slices() == other_slices


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_slices_are_unchanged_by_an_agent_restart(start_agent: StartAgent, number: signal.Signals) -> None:
    started = time.monotonic()
    agent = start_agent("node-a", "dgx-h100")
    first = time.monotonic() - started
    before = agent.slices()
    with SliceWatch(agent.node.api, AGENT_SLICES) as watch:
        started = time.monotonic()
        agent.process.end(number)
        agent.start()
        agent.ready()
        again = time.monotonic() - started
        assert again < max(5.0, 2 * first) * agent.node.api.slowdown(), (
            f"{again:.1f} s to be ready again, {first:.1f} s the first time"
        )
        time.sleep(QUIET_S)
        assert watch.events == []
    # Including resourceVersion and managedFields, so not even a write without a change has happened.
    assert agent.slices() == before


def test_slices_are_removed_after_the_agent_stops_permanently(start_agent: StartAgent) -> None:
    agent = start_agent("node-a", "dgx-h100")
    other_agent = start_agent("node-b", "vm-1gpu")
    other_slices = other_agent.slices()
    started = time.monotonic()
    agent.end()
    assert agent.slices(), "the agent keeps its slices for a successor"
    until(lambda: not agent.slices(), "the kubelet removes the slices")
    assert time.monotonic() - started > 25
    assert other_agent.slices() == other_slices


def test_unplug_and_replug_cost_one_write_each(start_agent: StartAgent) -> None:
    agent = start_agent("node-a", "dgx-h100")
    before = {name: spec_of(slices) for name, slices in agent.pools().items()}
    named = next(name for name, device in agent.devices().items() if address(device) == GPU)
    with SliceWatch(agent.node.api, AGENT_SLICES) as watch:
        agent.simulate("unplug", GPU)
        until(lambda: named not in agent.devices(), "the unplugged GPU is gone")
        time.sleep(QUIET_S)
        assert [(event.type, pool_of(event)) for event in watch.events] == [("MODIFIED", "node-a/gpu")]
        assert len(agent.devices()) == 17

        agent.simulate("replug", GPU)
        until(lambda: named in agent.devices(), "the replugged GPU is back")
        time.sleep(QUIET_S)
        assert [(event.type, pool_of(event)) for event in watch.events] == [("MODIFIED", "node-a/gpu")] * 2
    assert {name: spec_of(slices) for name, slices in agent.pools().items()} == before


def test_208_devices_use_the_minimum_number_of_slices(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    host = many_gpus(tmp_path, 208)
    flags = ("--sysfs-root", str(host / "sys"), "--dev-root", str(host / "dev"))
    agent = start_agent("node-a", None, *flags)
    assert len(agent.devices()) == 208
    pools = agent.pools()
    assert list(pools) == ["node-a/gpu"]
    # Slices with a taint have at most 64 devices, and any of these can be tainted; 4 x 64 >= 208 > 3 x 64.
    assert [len(item["spec"]["devices"]) for item in pools["node-a/gpu"]] == [52] * 4
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in pools["node-a/gpu"]} == {4}

    namespace.claim("some", request("gpu", "gpu", count=8))
    namespace.pod("user", claim="some")
    namespace.running("user")
    assert len({result["device"] for result in namespace.results("some")}) == 8


def test_agent_works_with_a_feature_gate_off() -> None:
    # A separate cluster, because gates are set when the API server starts. Taints are the most important gate: without
    # them unallocatable devices cannot be marked.
    with running(nodes=("node-a",), gates=build.without_taints()) as cluster:
        node = cluster.node("node-a")
        agent = Agent(node, "dgx-h100", cluster.identity().kubeconfig("node-a"))
        try:
            agent.start().ready()
            wait_until_idle(agent)
            assert len(agent.devices()) == 18

            # NVML reports GPU_IS_LOST. The GPU must not be allocated, and cannot be tainted here: it is not published.
            agent.simulate("fail", "--device", "3", "--code", "15")
            until(lambda: len(agent.devices()) == 17, "the lost GPU is withdrawn")
            assert not [device for device in agent.devices().values() if "taints" in device]
            agent.wait_for_log("DRADeviceTaints")
            wait_until_idle(agent)
            assert len(agent.devices()) == 17
        finally:
            agent.end()


def test_slices_of_another_node_cannot_be_written(cluster: Cluster, start_agent: StartAgent) -> None:
    start_agent("node-a", "vm-1gpu")
    victim = start_agent("node-b", "vm-1gpu")
    api = cluster.api.as_user(cluster.identity().token("node-a"))
    before = victim.slices()

    forged: Object = {"metadata": {"generateName": "forged-"}, "spec": {**before[0]["spec"], "devices": []}}
    forged["spec"]["pool"] = {"name": "node-b/forged", "generation": 1, "resourceSliceCount": 1}
    changed = {**before[0], "spec": {**before[0]["spec"], "devices": []}}
    everywhere = {**forged, "spec": {key: value for key, value in forged["spec"].items() if key != "nodeName"}}
    everywhere["spec"]["allNodes"] = True
    foreign = {**forged, "spec": {**forged["spec"], "nodeName": "node-a", "driver": "gpu.example.com"}}
    requests: list[tuple[str, Callable[[], Any]]] = [
        ("must not write slices of node node-b", lambda: api.create(SLICES, forged)),
        ("must not write slices of node node-b", lambda: api.replace(SLICES, changed)),
        ("must not write slices of node node-b", lambda: api.delete(SLICES, before[0]["metadata"]["name"])),
        ("must be of one node", lambda: api.create(SLICES, everywhere)),
        ("must not write slices of driver gpu.example.com", lambda: api.create(SLICES, foreign)),
    ]
    for message, send in requests:
        with pytest.raises(ApiStatusError, match=message) as error:
            send()
        assert error.value.code == 403
    assert victim.slices() == before

    pool = {**forged["spec"]["pool"], "name": "node-a/own"}
    own = {**forged, "spec": {**forged["spec"], "nodeName": "node-a", "pool": pool}}
    api.delete(SLICES, api.create(SLICES, own)["metadata"]["name"])


def pool_of(event: Event) -> str:
    return str(event.object["spec"]["pool"]["name"])


def spec_of(slices: list[Object]) -> list[Object]:
    return [item["spec"] for item in slices]


def address(device: Object) -> str:
    """Return the PCI address of a published device, empty if it has none."""
    return str(device["attributes"].get("resource.kubernetes.io/pciBusID", {}).get("string", ""))


def writes(agent: Agent) -> list[str]:
    """Return the resourceVersions of the slices: every write changes one."""
    return [item["metadata"]["resourceVersion"] for item in agent.slices()]


def wait_until_idle(agent: Agent, timeout_s: float = LONG_TIMEOUT_S) -> None:
    """Wait until no write has happened for a while: the agent does not repeat writes that the API server drops."""
    before: list[str] = []
    last_change = time.monotonic()

    def no_more_writes() -> bool:
        nonlocal before, last_change
        now = writes(agent)
        if now != before:
            before, last_change = now, time.monotonic()
        return time.monotonic() - last_change >= QUIET_S

    until(no_more_writes, f"{agent.name} has no pending writes", timeout_s)


def many_gpus(directory: Path, count: int) -> Path:
    """Build a host of simple GPUs, sixteen in each PCI domain."""
    from dra_simulate import build_machine
    from dra_simulate.machine import HostBridge, Machine, NumaNode
    from dra_simulate.parts.bridges import port
    from dra_simulate.parts.intel import battlemage

    bridges = []
    for domain in range(count // 16):
        gpus = [battlemage(f"{domain:04x}:{bus:02x}:00.0", domain * 16 + bus - 1) for bus in range(1, 17)]
        ports = [port(f"{domain:04x}:00:{slot:02x}.0", gpu) for slot, gpu in enumerate(gpus, 1)]
        bridges.append(HostBridge(f"pci{domain:04x}:00", domain % 2, tuple(ports)))
    nodes = (NumaNode("0-63", 512 << 30, (10, 21)), NumaNode("64-127", 512 << 30, (21, 10)))
    build_machine(Machine("many", f"{count} GPUs", nodes=nodes, bridges=tuple(bridges)), directory)
    return directory
