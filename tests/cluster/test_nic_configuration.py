"""The network interface of a NIC on a real cluster: moved into the pod, or the reason why it cannot be moved."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.kube.agent import Agent
from cluster.kube.workload import Namespace, container, opaque, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
DRIVER = "dra-agent.internal"

Agents = dict[str, Agent]


def nic(request_name: str, /, **interface: object) -> dict[str, Any]:
    return opaque(DRIVER, {"apiVersion": f"{DRIVER}/v1", "kind": "NicConfig", "interface": interface}, request_name)


@pytest.fixture
def interface(agents: Agents) -> Iterator[tuple[str, str]]:
    """A NIC of node-a and its interface: a veth with the same name and hardware address replaces the simulated one."""
    network = agents["node-a"].host / "sys/class/net"
    addresses = {path.name: (path / "address").read_text().strip() for path in network.iterdir()}
    device, name = next(
        (device, attributes["ifName"]["string"])
        for device, found in sorted(agents["node-a"].devices().items())
        # InfiniBand addresses are longer than that of any interface that can be created here.
        if "ifName" in (attributes := found["attributes"]) and len(addresses[attributes["ifName"]["string"]]) == 17
    )
    address = addresses[name]
    command = ["ip", "link", "add", name, "address", address, "type", "veth", "peer", "name", "dra-peer"]
    subprocess.run(command, check=True)
    yield device, name
    # The kernel deletes a virtual interface with the network namespace of its pod.
    for link in (name, "dra-peer"):
        subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)


def claim(namespace: Namespace, interface: tuple[str, str], **configuration: object) -> None:
    selector = f'device.attributes["{DRIVER}"].ifName == "{interface[1]}"'
    namespace.claim("net", request("nic", "rdma-nic", selector), config=[nic("nic", name="net1", **configuration)])


def links(namespace: Namespace, container_name: str | None = None) -> list[str]:
    return namespace.execute("user", "ls /sys/class/net", container_name).split()


def pod(namespace: Namespace, *containers: dict[str, Any], **spec: Any) -> None:
    named = [{"name": "net", "resourceClaimName": "net"}]
    namespace.pod("user", claims=named, containers=containers, node="node-a", **spec)


def test_interface_is_moved_and_renamed(agents: Agents, namespace: Namespace, interface: tuple[str, str]) -> None:
    device, name = interface
    claim(namespace, interface, mtu=9000)
    namespace.pod("user", claim="net", node="node-a")
    namespace.running("user")
    assert [result["device"] for result in namespace.results("net")] == [device]
    assert "net1" in links(namespace) and name not in links(namespace)
    reported = {
        key: value for key, value in namespace.environment("user").items() if key.endswith(("_IFNAME", "_NOTE"))
    }
    assert list(reported.values()) == ["net1"], "no note about a missing interface"
    assert namespace.execute("user", "cat /sys/class/net/net1/mtu").strip() == "9000"
    mtu = agents["node-a"].host / "sys/class/net" / name / "mtu"
    assert mtu.read_text().strip() != "9000", "of the host"
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(
        lambda: not list((agents["node-a"].state_dir / "net").iterdir()), "the record of the interface is removed"
    )


def test_interface_gets_addresses_and_routes(namespace: Namespace, interface: tuple[str, str]) -> None:
    subprocess.run(["ip", "link", "set", "dra-peer", "up"], check=True)
    routes = [{"destination": "203.0.113.0/24", "gateway": "192.0.2.1"}]
    claim(namespace, interface, addresses=["192.0.2.5/24"], routes=routes)
    namespace.pod("user", claim="net", node="node-a")
    namespace.running("user")
    assert "inet 192.0.2.5/24" in namespace.execute("user", "busybox ip address show dev net1")
    assert "203.0.113.0/24 via 192.0.2.1 dev net1" in namespace.execute("user", "busybox ip route")


def test_all_containers_with_the_claim_see_the_interface(namespace: Namespace, interface: tuple[str, str]) -> None:
    claim(namespace, interface)
    first = container("first", "net", command="test -e /sys/class/net/net1")
    pod(namespace, container("one", "net"), container("two", "net"), init_containers=[first])
    namespace.running("user")
    for name in ("one", "two"):
        assert "net1" in links(namespace, name)


def test_restarted_container_still_has_the_interface(
    agents: Agents, namespace: Namespace, interface: tuple[str, str]
) -> None:
    claim(namespace, interface)
    # Ends when the file exists, and is restarted in the same pod.
    until_end_file = (
        "rm -f /shared/end; trap 'exit 0' TERM INT; while [ ! -e /shared/end ]; do sleep 0.2 & wait $!; done"
    )
    shared = [{"name": "shared", "mountPath": "/shared"}]
    main = container("main", "net", command=until_end_file, volumeMounts=shared)
    pod(namespace, main, restartPolicy="Always", volumes=[{"name": "shared", "emptyDir": {}}])
    namespace.running("user")

    def started() -> int:
        (status,) = namespace.get_pod("user")["status"]["containerStatuses"]
        return int(status["restartCount"]) if status["ready"] else -1

    namespace.execute("user", "touch /shared/end")
    namespace.api.wait(lambda: started() == 1, "the container is started again")
    assert "net1" in links(namespace)

    # Without an agent to check the interface the container does not start; the hook reports the reason.
    agents["node-a"].end()
    try:
        namespace.execute("user", "touch /shared/end")
        message = "dra-agent-hook: the claim's network interface cannot be moved to the container: the agent at"

        def reported() -> bool:
            return any(message in event and "is it running?" in event for event in namespace.events("user"))

        namespace.api.wait(reported, "the pod's Event has the reason")
    finally:
        agents["node-a"].start().ready()
    namespace.api.wait(lambda: started() >= 2, "the container starts when the agent runs again")
    assert "net1" in links(namespace)


def test_host_network_pod_reports_that_the_interface_stays(namespace: Namespace, interface: tuple[str, str]) -> None:
    claim(namespace, interface)
    namespace.pod("user", claim="net", node="node-a", hostNetwork=True)
    message = "the container is in the host's network, where the interface is already"

    def reported() -> bool:
        return any(message in event for event in namespace.events("user"))

    namespace.api.wait(reported, "the pod's Event has the reason")
    host_links = json.loads(subprocess.run(["ip", "-json", "link"], check=True, capture_output=True).stdout)
    assert interface[1] in {link["ifname"] for link in host_links}


def test_mtu_alone_leaves_the_interface_on_the_host(agents: Agents, namespace: Namespace) -> None:
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
    # The entry names no request: it applies to the NIC and not to the GPU.
    (device,) = (result["device"] for result in namespace.results("both") if result["request"] == "nic")
    name = agents["node-a"].devices()[device]["attributes"]["ifName"]["string"]
    mtu = agents["node-a"].host / "sys/class/net" / name / "mtu"
    assert mtu.read_text().strip() == "4200"
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: mtu.read_text().strip() != "4200", "the MTU is restored")
