"""What the agent publishes, and what becomes of it when kubelets, agents, devices and API servers come and go."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import NODES, SLICES, Object, RefusedError
from cluster.kube.cluster import Cluster, running
from cluster.kube.process import LONG, until
from cluster.kube.slice_recorder import Event, SliceWatch
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
OURS = {"spec.driver": DRIVER}
GPU = "0000:52:00.0"
QUIET = 3.0
"""Seconds after which a write that was still to come would have been seen."""


def test_published_and_owned_by_the_node(cluster: Cluster, start_agent: StartAgent) -> None:
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
    # The API server keeps everything that was sent: nothing is dropped, nothing is written a second time.
    assert not [item for agent in agents for item in agent.slices() if item["metadata"]["generation"] > 1]


def test_wiped_by_a_kubelet_restart_and_back_within_2_seconds(start_agent: StartAgent) -> None:
    agent = start_agent("node-a", "dgx-h100")
    bystander = start_agent("node-b", "vm-1gpu")
    others = bystander.slices()
    before = {item["metadata"]["uid"]: item["spec"]["devices"] for item in agent.slices()}
    with SliceWatch(agent.node.api, OURS) as watch:
        agent.node.restart_kubelet()
        until(lambda: len(watch.of("DELETED")) == len(before), "the kubelet wipes the slices")
        until(lambda: len(watch.of("ADDED")) == len(before), "the slices are published again")
        until(agent.pools_are_complete, "the pools are complete")
    pace = agent.node.api.pace()
    wiped, back = watch.of("DELETED"), watch.of("ADDED")
    assert {event.object["metadata"]["uid"] for event in wiped} == set(before)
    for event in wiped:
        again = next(other for other in back if other.object["spec"]["pool"]["name"] == pool_of(event))
        assert again.at - event.at < 2.0 * pace
    assert sorted(map(str, before.values())) == sorted(str(event.object["spec"]["devices"]) for event in back)
    assert bystander.slices() == others


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_unchanged_over_an_agent_restart(start_agent: StartAgent, number: signal.Signals) -> None:
    began = time.monotonic()
    agent = start_agent("node-a", "dgx-h100")
    first = time.monotonic() - began
    before = agent.slices()
    with SliceWatch(agent.node.api, OURS) as watch:
        began = time.monotonic()
        agent.process.end(number)
        agent.start()
        agent.ready()
        again = time.monotonic() - began
        assert again < max(5.0, 2 * first) * agent.node.api.pace(), (
            f"{again:.1f} s to be ready again, {first:.1f} s the first time"
        )
        time.sleep(QUIET)
        assert watch.events == []
    # Byte by byte: with resourceVersion and managedFields, so not even a write without a change has happened.
    assert agent.slices() == before


def test_removed_after_the_agent_stops_for_good(start_agent: StartAgent) -> None:
    agent = start_agent("node-a", "dgx-h100")
    bystander = start_agent("node-b", "vm-1gpu")
    others = bystander.slices()
    began = time.monotonic()
    agent.end()
    assert agent.slices(), "the agent leaves its slices to its successor"
    until(lambda: not agent.slices(), "the kubelet removes the slices")
    assert time.monotonic() - began > 25
    assert bystander.slices() == others


def test_unplugged_gpu_gone_and_replugged_gpu_back_with_one_write_each(start_agent: StartAgent) -> None:
    agent = start_agent("node-a", "dgx-h100")
    before = {name: spec_of(slices) for name, slices in agent.pools().items()}
    named = next(name for name, device in agent.devices().items() if address(device) == GPU)
    with SliceWatch(agent.node.api, OURS) as watch:
        agent.simulate("unplug", GPU)
        until(lambda: named not in agent.devices(), "the unplugged GPU is gone")
        time.sleep(QUIET)
        assert [(event.type, pool_of(event)) for event in watch.events] == [("MODIFIED", "node-a/gpu")]
        assert len(agent.devices()) == 17

        agent.simulate("replug", GPU)
        until(lambda: named in agent.devices(), "the replugged GPU is back")
        time.sleep(QUIET)
        assert [(event.type, pool_of(event)) for event in watch.events] == [("MODIFIED", "node-a/gpu")] * 2
    assert {name: spec_of(slices) for name, slices in agent.pools().items()} == before


def test_208_devices_in_as_few_slices_as_the_limits_allow(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    host = many_gpus(tmp_path, 208)
    flags = ("--sysfs-root", str(host / "sys"), "--dev-root", str(host / "dev"))
    agent = start_agent("node-a", None, *flags)
    assert len(agent.devices()) == 208
    pools = agent.pools()
    assert list(pools) == ["node-a/gpu"]
    # 64 devices each at most, because a taint on one of them makes that the limit; 4 x 64 >= 208 > 3 x 64.
    assert [len(item["spec"]["devices"]) for item in pools["node-a/gpu"]] == [52] * 4
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in pools["node-a/gpu"]} == {4}

    namespace.claim("some", request("gpu", "gpu", count=8))
    namespace.pod("user", claim="some")
    namespace.running("user")
    assert len({result["device"] for result in namespace.results("some")}) == 8


def test_an_apiserver_with_a_gate_off() -> None:
    # A cluster of its own, because gates are set when the API server starts. Taints are what the agent needs most:
    # without them a device that must not be allocated cannot be told from one that may.
    with running(nodes=("node-a",), gates={"DRADeviceTaints": False, "DRADeviceTaintRules": False}) as without:
        node = without.node("node-a")
        agent = Agent(node, "dgx-h100", without.identity().kubeconfig("node-a"))
        try:
            agent.start().ready()
            calm(agent)
            assert len(agent.devices()) == 18

            # NVML says GPU_IS_LOST. The GPU must not be allocated, and cannot be tainted here: it is not published.
            agent.simulate("fail", "--device", "3", "--code", "15")
            until(lambda: len(agent.devices()) == 17, "the broken GPU is left out")
            assert not [device for device in agent.devices().values() if "taints" in device]
            agent.wait_for_log("DRADeviceTaints")
            calm(agent)
            assert len(agent.devices()) == 17
        finally:
            agent.end()


def test_another_nodes_slices_cannot_be_written(cluster: Cluster, start_agent: StartAgent) -> None:
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
    attempts: list[tuple[str, Callable[[], Any]]] = [
        ("must not write slices of node node-b", lambda: api.create(SLICES, forged)),
        ("must not write slices of node node-b", lambda: api.replace(SLICES, changed)),
        ("must not write slices of node node-b", lambda: api.delete(SLICES, before[0]["metadata"]["name"])),
        ("must be of one node", lambda: api.create(SLICES, everywhere)),
        ("must not write slices of driver gpu.example.com", lambda: api.create(SLICES, foreign)),
    ]
    for message, attempt in attempts:
        with pytest.raises(RefusedError, match=message) as refused:
            attempt()
        assert refused.value.code == 403
    assert victim.slices() == before

    pool = {**forged["spec"]["pool"], "name": "node-a/own"}
    own = {**forged, "spec": {**forged["spec"], "nodeName": "node-a", "pool": pool}}
    api.delete(SLICES, api.create(SLICES, own)["metadata"]["name"])


def pool_of(event: Event) -> str:
    return str(event.object["spec"]["pool"]["name"])


def spec_of(slices: list[Object]) -> list[Object]:
    return [item["spec"] for item in slices]


def address(device: Object) -> str:
    """The PCI address of a published device, empty where it has none."""
    return str(device["attributes"].get("resource.kubernetes.io/pciBusID", {}).get("string", ""))


def writes(agent: Agent) -> list[str]:
    """What the API server has of the slices: every write changes a resourceVersion."""
    return [item["metadata"]["resourceVersion"] for item in agent.slices()]


def calm(agent: Agent, at_most: float = LONG) -> None:
    """Wait until nothing was written for a while: it does not write again and again what the API server drops."""
    before: list[str] = []
    looked = time.monotonic()

    def no_more_writes() -> bool:
        nonlocal before, looked
        now = writes(agent)
        if now != before:
            before, looked = now, time.monotonic()
        return time.monotonic() - looked >= QUIET

    until(no_more_writes, f"{agent.name} has written what it has to", at_most)


def many_gpus(directory: Path, count: int) -> Path:
    """A host of plain GPUs, sixteen in each PCI domain."""
    from dra_agent.simulate import build_machine
    from dra_agent.simulate.machine import HostBridge, Machine, NumaNode
    from dra_agent.simulate.parts.bridges import port
    from dra_agent.simulate.parts.intel import battlemage

    bridges = []
    for domain in range(count // 16):
        gpus = [battlemage(f"{domain:04x}:{bus:02x}:00.0", domain * 16 + bus - 1) for bus in range(1, 17)]
        ports = [port(f"{domain:04x}:00:{slot:02x}.0", gpu) for slot, gpu in enumerate(gpus, 1)]
        bridges.append(HostBridge(f"pci{domain:04x}:00", domain % 2, tuple(ports)))
    nodes = (NumaNode("0-63", 512 << 30, (10, 21)), NumaNode("64-127", 512 << 30, (21, 10)))
    build_machine(Machine("many", f"{count} GPUs", nodes=nodes, bridges=tuple(bridges)), directory)
    return directory
