"""SR-IOV virtual functions of a NIC and of an Intel GPU: each is one device, for one pod at a time."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.workload import Namespace, opaque, request

HARDWARE = {"node-a": "l40s", "node-b": "arc-b60"}
AGENT_CONFIG = f"""\
[[inventory.partition]]
mode = "sriov"
when = 'device.attributes["{DRIVER}"].vendor == "intel"'
"""
OWN = f'device.attributes["{DRIVER}"]'
NIC, GPU = "0000:42:00", "0000:05:00"
"""The slots of the physical functions. Function 0 is the physical one, and 1 to 4 are the virtual ones."""
VIRTUAL = ("1", "2", "3", "4")

Agents = dict[str, Agent]


def at(address: str) -> str:
    return f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'


def address_of(namespace: Namespace, pod: str) -> str:
    """Return the PCI address that the container of a pod has in its environment."""
    (result,) = namespace.results(namespace.claim_of(pod))
    prefix = "DRA_AGENT_DEVICE_" + re.sub(r"[^A-Z0-9]", "_", result["device"].upper())
    return namespace.environment(pod)[f"{prefix}_PCI"]


def start(namespace: Namespace, template: str, slot: str) -> dict[str, str]:
    """Start a pod for each virtual function; return the pods by the last digit of their address."""
    pods = [f"user-{number}" for number in VIRTUAL]
    for pod in pods:
        namespace.pod(pod, template=template)
    namespace.running(*pods)
    found = {address_of(namespace, pod): pod for pod in pods}
    assert sorted(found) == [f"{slot}.{number}" for number in VIRTUAL], "no two pods have the same function"
    return {address[-1]: pod for address, pod in found.items()}


def release(namespace: Namespace, agent: Agent, pod: str) -> None:
    """Delete a pod, and wait until nothing of its claim is on the node."""
    uid = namespace.claim_of(pod)["metadata"]["uid"]
    assert any(uid in name for name in agent.node.cdi_files())
    namespace.delete_pod(pod)
    namespace.wait_until_deleted(pod)
    namespace.api.wait(
        lambda: not any(uid in name for name in agent.node.cdi_files()), "the CDI spec of the claim is removed"
    )


def test_virtual_functions_of_a_nic(agents: Agents, namespace: Namespace) -> None:
    """A container has the verbs device of its function, and none of the physical function or of other pods."""
    namespace.template("nic", request("nic", "rdma-nic", f"{OWN}.isSriovVf"))
    pods = start(namespace, "nic", NIC)
    for number, pod in pods.items():
        assert namespace.execute(pod, "ls /dev/infiniband").split() == ["rdma_cm", f"uverbs{number}"]
    namespace.pod("waits", template="nic")
    namespace.wait_for_scheduling_failure("waits", "cannot allocate all claims")
    release(namespace, agents["node-a"], pods["3"])
    namespace.running("waits")
    assert address_of(namespace, "waits") == f"{NIC}.3"


@pytest.fixture
def interface(agents: Agents) -> Iterator[str]:
    """The interface of a virtual function: a veth with its name and hardware address replaces the simulated one."""
    name = next((agents["node-a"].host / "sys/bus/pci/devices" / f"{NIC}.2" / "net").iterdir()).name
    address = (agents["node-a"].host / "sys/class/net" / name / "address").read_text().strip()
    command = ["ip", "link", "add", name, "address", address, "type", "veth", "peer", "name", "dra-peer"]
    subprocess.run(command, check=True)
    yield name
    # The kernel deletes a virtual interface with the network namespace of its pod.
    for link in (name, "dra-peer"):
        subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)


def test_interface_of_a_virtual_function_is_moved(agents: Agents, namespace: Namespace, interface: str) -> None:
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "NicConfig", "interface": {"name": "net1", "mtu": 4200}}
    namespace.template("nic", request("nic", "rdma-nic", at(f"{NIC}.2")), config=[opaque(DRIVER, parameters, "nic")])
    namespace.pod("user", template="nic")
    namespace.running("user")
    links = namespace.execute("user", "ls /sys/class/net").split()
    assert "net1" in links and interface not in links
    assert namespace.execute("user", "cat /sys/class/net/net1/mtu").strip() == "4200"
    release(namespace, agents["node-a"], "user")
    namespace.api.wait(
        lambda: not list((agents["node-a"].state_dir / "net").iterdir()), "the record of the interface is removed"
    )


def test_virtual_functions_of_a_gpu(agents: Agents, namespace: Namespace) -> None:
    """The whole GPU is allocated only while no virtual function of it is, and the reverse."""
    agent = agents["node-b"]
    published = agent.devices()
    memory = {published[f"gpu-0000-05-00-{number}"]["capacity"]["memory"]["value"] for number in VIRTUAL}
    assert memory == {"5632Mi"}, "the quota that the physical function has assigned"
    namespace.template("part", request("gpu", "intel-gpu", f'{OWN}.type == "vf"'))
    namespace.template("whole", request("gpu", "intel-gpu", at(f"{GPU}.0")))
    pods = start(namespace, "part", GPU)
    for number, pod in pods.items():
        card, render = (first + int(number) for first in (1, 129))
        assert namespace.execute(pod, "ls /dev/dri").split() == ["by-path", f"card{card}", f"renderD{render}"]
        names = namespace.execute(pod, "ls /dev/dri/by-path").split()
        assert names == [f"pci-{GPU}.{number}-{kind}" for kind in ("card", "render")]
    for waiting, template in {"fifth": "part", "whole": "whole"}.items():
        namespace.pod(waiting, template=template)
        namespace.wait_for_scheduling_failure(waiting, "cannot allocate all claims")
    release(namespace, agent, pods["4"])
    namespace.running("fifth")
    assert address_of(namespace, "fifth") == f"{GPU}.4"
    for pod in (pods["1"], pods["2"], pods["3"], "fifth"):
        release(namespace, agent, pod)
    namespace.running("whole")
    assert address_of(namespace, "whole") == f"{GPU}.0"
    namespace.pod("part", template="part")
    namespace.wait_for_scheduling_failure("part", "cannot allocate all claims")
