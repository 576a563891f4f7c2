"""A node as people run it: a bond, a management controller, a foreign driver and other managers; pods get the rest.

The agent of node-a publishes two of five GPUs. One is nouveau's, one another DRA driver's, one shows the screen of the
management controller. Of the network adapters, two are the bond of the host, two are physical functions with virtual
ones, and a device plugin has those with RDMA.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLASSES, NODES, SLICES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request
from dra_simulate import tree
from dra_simulate.builder import plan
from dra_simulate.host_network import Bond
from dra_simulate.profiles import load_profile

HARDWARE = {"node-a": "l40s-untidy", "node-b": "vm-1gpu"}
FREE = {"gpu-0000-41-00-0", "gpu-0000-81-00-0"}
PASSED_THROUGH = "nic-0000-c2-00-2"
"""It has no interface and no RDMA device."""
BONDED = {"nic-0000-f7-00-0": "eno1np0", "nic-0000-f7-00-1": "eno2np1"}
NOT_PUBLISHED = {
    "gpu-0000-01-00-0": ("other-manager", "driver gpu.nvidia.com also advertises it"),
    "gpu-0000-c1-00-0": ("unusable-driver", "nouveau drives it"),
    "gpu-0000-f9-00-0": ("display", "the display of a management controller"),
    "nic-0000-42-00-0": ("physical-function", "it has 4 virtual functions"),
    "nic-0000-c2-00-0": ("physical-function", "it has 2 virtual functions"),
    **dict.fromkeys(
        (*(f"nic-0000-42-00-{number}" for number in range(1, 5)), "nic-0000-c2-00-1"),
        ("other-manager", "device plugin rdma/hca_shared_devices_a also advertises it"),
    ),
    **{
        name: ("host-interface", f"the host uses it: {interface} is a port of bond0")
        for name, interface in BONDED.items()
    },
}
"""Code and begin or part of the reason."""

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def node(session_cluster: Cluster, agents: dict[str, Agent]) -> Iterator[Agent]:
    """The agent of the untidy node, where another driver has one GPU and a device plugin the adapters with RDMA."""
    api = session_cluster.api
    pool = {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    gpu = {"name": "gpu-0", "attributes": {"pciBusID": {"string": "0000:01:00.0"}}}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": pool, "devices": [gpu]}
    selector = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "nic"'
    api.create(SLICES, {"metadata": {"name": "theirs"}, "spec": spec})
    api.create(CLASSES, {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": selector}}]}})
    _advertise(session_cluster, "5")
    agent = agents["node-a"]
    try:
        api.wait(lambda: agent.devices().keys() == {*FREE, PASSED_THROUGH}, "the devices of the others are withdrawn")
        yield agent
    finally:
        _advertise(session_cluster, None)
        api.delete(CLASSES, "nic")
        api.delete(SLICES, "theirs")


def _advertise(cluster: Cluster, amount: str | None) -> None:
    """Set what the device plugin for shared RDMA adapters advertises."""
    amounts = {"rdma/hca_shared_devices_a": amount}
    patch = {"status": {"capacity": amounts, "allocatable": amounts}}
    cluster.api.patch(NODES, "node-a", patch, subresource="status")


@pytest.fixture
def without_bond(node: Agent) -> Iterator[Callable[[], None]]:
    """A function that takes the bond of the simulated host apart; it is back after the test."""
    machine = load_profile(HARDWARE["node-a"])
    assert machine.network is not None
    bond = next(one for one in machine.network.interfaces if isinstance(one, Bond))
    rails = tuple(one for one in machine.network.addresses if not one.interface.startswith(bond.name))
    apart = replace(machine, network=replace(machine.network, interfaces=(), addresses=rails, routes=()))
    with_bond, without = plan(machine), plan(apart)
    # State, which is written only where it is missing.
    flags = tuple(f"/{port}/flags" for port in bond.ports)
    gone = [path for path in with_bond.entries if path not in without.entries or path.endswith(flags)]

    def take_apart() -> None:
        tree.remove(gone, node.host)
        tree.write(without, node.host)

    yield take_apart
    tree.write(with_bond, node.host)


def _devices(namespace: Namespace, *pods: str) -> set[str]:
    """Return the devices that the claims of pods hold."""
    return {result["device"] for pod in pods for result in namespace.results(namespace.claim_of(pod))}


def test_pods_get_what_nobody_else_uses(node: Agent, namespace: Namespace) -> None:
    for device_class in ("gpu", "rdma-nic", "nic"):
        namespace.template(device_class, request("device", device_class))
    for number in range(len(FREE)):
        namespace.pod(f"gpu-{number}", template="gpu", node="node-a")
    namespace.running("gpu-0", "gpu-1")
    assert _devices(namespace, "gpu-0", "gpu-1") == FREE
    for device_class in ("gpu", "rdma-nic", "nic"):
        namespace.pod(f"waits-{device_class}", template=device_class, node="node-a")
        namespace.wait_for_scheduling_failure(f"waits-{device_class}", "cannot allocate all claims")
    (freed,) = _devices(namespace, "gpu-0")
    namespace.delete_pod("gpu-0")
    namespace.running("waits-gpu")
    assert _devices(namespace, "waits-gpu") == {freed}
    for device_class in ("rdma-nic", "nic"):
        namespace.wait_for_scheduling_failure(f"waits-{device_class}", "cannot allocate all claims")
        assert not _devices(namespace, f"waits-{device_class}")


def test_a_claim_for_all_gets_what_nobody_else_uses(node: Agent, namespace: Namespace) -> None:
    namespace.claim("all", request("gpus", "gpu", allocationMode="All"))
    namespace.pod("user", claim="all", node="node-a")
    namespace.running("user")
    assert _devices(namespace, "user") == FREE


@pytest.mark.parametrize(("device_class", "count"), [("gpu", 3), ("rdma-nic", 1), ("nic", 1)])
def test_explain_has_the_reason_of_each_device(
    cluster: Cluster, node: Agent, namespace: Namespace, agent_command: Command, device_class: str, count: int
) -> None:
    namespace.claim("mine", request("devices", device_class, count=count))
    namespace.pod("user", claim="mine", node="node-a")
    namespace.wait_for_scheduling_failure("user", "cannot allocate all claims")
    where = ("pod/user", "-n", namespace.name, "--kubeconfig", str(cluster.kubeconfig))

    def explained(*flags: str) -> tuple[Object, str]:
        """Return the answer for node-a, and the text."""
        results = [agent_command("explain", *where, *flags, *more, check=False) for more in (("-o", "json"), ())]
        assert [result.returncode for result in results] == [1, 1], results
        nodes: list[Object] = json.loads(results[0].stdout)["nodes"]
        return next(entry for entry in nodes if entry["node"] == "node-a"), results[1].stdout

    # On the node itself.
    answer, text = explained("--state-dir", str(node.state_dir))
    excluded: dict[str, Any] = {one["name"]: one for one in answer["excluded"]}
    assert {name: one["code"] for name, one in excluded.items()} == {
        name: code for name, (code, _) in NOT_PUBLISHED.items()
    }
    for name, (code, reason) in NOT_PUBLISHED.items():
        assert reason in excluded[name]["reason"]
        assert any(code in line and reason in line for line in text.splitlines()), reason
    # Elsewhere only the published devices are known.
    answer, text = explained()
    assert answer["excluded"] is None
    assert "`dra-agent devices` on node node-a lists them with the reasons" in text
    assert not any(reason in text for _, reason in NOT_PUBLISHED.values())


def test_ports_of_a_bond_that_is_taken_apart_start_waiting_pods(
    node: Agent, namespace: Namespace, without_bond: Callable[[], None]
) -> None:
    namespace.template("nic", request("nic", "nic"))
    pods = [f"user-{number}" for number in range(len(BONDED))]
    for pod in pods:
        namespace.pod(pod, template="nic", node="node-a")
    for pod in pods:
        namespace.wait_for_scheduling_failure(pod, "cannot allocate all claims")
    without_bond()
    namespace.running(*pods)
    assert _devices(namespace, *pods) == BONDED.keys()
    assert node.devices().keys() == {*FREE, PASSED_THROUGH, *BONDED}
    for pod in pods:
        namespace.delete_pod(pod)
    namespace.wait_until_deleted(*pods)
