"""A NIC's interface on a real cluster: moved into the pod by the container runtime, or refused where it cannot be."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.kube.agent import Agent
from cluster.kube.workload import Namespace, container, opaque, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
DRIVER = "dra-agent.internal"
AGENT_CONFIG = "net_devices = true\n"

Agents = dict[str, Agent]


def nic(request_name: str, /, **interface: object) -> dict[str, Any]:
    return opaque(DRIVER, {"apiVersion": f"{DRIVER}/v1", "kind": "NicConfig", "interface": interface}, request_name)


@pytest.fixture
def interface(agents: Agents) -> Iterator[tuple[str, str]]:
    """A NIC of node-a and its interface: a real one of that name stands for the simulated one."""
    features = subprocess.run([shutil.which("runc") or "runc", "features"], capture_output=True, text=True, check=False)
    known = json.loads(features.stdout or "{}").get("linux", {}).get("netDevices", {}).get("enabled", False)
    if not known:
        pytest.skip("runc moves no interfaces: it takes 1.4 or later in PATH")
    device, name = next(
        (device, attributes["ifName"]["string"])
        for device, found in sorted(agents["node-a"].devices().items())
        if "ifName" in (attributes := found["attributes"])
    )
    subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", "dra-peer"], check=True)
    yield device, name
    # With the pod's network the kernel has removed it, as it is a virtual one.
    for link in (name, "dra-peer"):
        subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)


def test_the_runtime_moves_the_interface_under_its_new_name(
    agents: Agents, namespace: Namespace, interface: tuple[str, str]
) -> None:
    device, name = interface
    selector = f'device.attributes["{DRIVER}"].ifName == "{name}"'
    namespace.claim("net", request("nic", "rdma-nic", selector), config=[nic("nic", name="net1", mtu=9000)])
    namespace.pod("user", claim="net", node="node-a")
    namespace.running("user")
    assert [result["device"] for result in namespace.results("net")] == [device]
    links = namespace.execute("user", "ls /sys/class/net").split()
    assert "net1" in links and name not in links
    told = {key: value for key, value in namespace.environment("user").items() if key.endswith(("_IFNAME", "_NOTE"))}
    assert list(told.values()) == ["net1"], "nothing is said to be missing"
    mtu = agents["node-a"].host / "sys/class/net" / name / "mtu"
    assert mtu.read_text().strip() == "9000"
    namespace.delete_pod("user")
    namespace.gone("user")
    namespace.api.wait(lambda: mtu.read_text().strip() != "9000", "the MTU is put back with the claim's last pod")


def test_an_mtu_alone_leaves_the_interface_on_the_host(agents: Agents, namespace: Namespace) -> None:
    selector = f'has(device.attributes["{DRIVER}"].ifName)'
    requests = [request("nic", "rdma-nic", selector), request("gpu", "gpu")]
    config = opaque(DRIVER, {"apiVersion": f"{DRIVER}/v1", "kind": "NicConfig", "interface": {"mtu": 4200}})
    namespace.claim("both", *requests, config=[config])
    namespace.pod(
        "user",
        claims=[{"name": "both", "resourceClaimName": "both"}],
        containers=[container("main", "both")],
        node="node-a",
    )
    namespace.running("user")
    # The entry names no request: it is for the NIC, and passes the GPU over.
    (device,) = (result["device"] for result in namespace.results("both") if result["request"] == "nic")
    name = agents["node-a"].devices()[device]["attributes"]["ifName"]["string"]
    mtu = agents["node-a"].host / "sys/class/net" / name / "mtu"
    assert mtu.read_text().strip() == "4200"
    namespace.delete_pod("user")
    namespace.gone("user")
    namespace.api.wait(lambda: mtu.read_text().strip() != "4200", "the MTU is put back")
