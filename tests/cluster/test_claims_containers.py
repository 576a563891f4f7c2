"""What containers get for their claims: variables, device nodes and mounts, for each kind of device."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLASSES
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request

HARDWARE = {"node-a": "dgx-h100", "node-b": "mixed"}

Agents = dict[str, Agent]


@dataclass(frozen=True)
class Kind:
    """A kind of device of the machine `mixed`, and what a container gets for it."""

    selector: str
    """Of the device's own attributes."""
    nodes: tuple[str, ...]
    """Every device node that a container has only with the claim."""
    variables: dict[str, str] = field(default_factory=dict)
    """Of the device, without DRA_AGENT_DEVICE_<DEVICE>: regular expressions."""


KINDS = {
    "nvidia": Kind(
        'type == "gpu" && {0}.vendor == "nvidia"',
        (
            "/dev/nvidia-modeset",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia0",
            "/dev/nvidiactl",
        ),
        {"_PCI": "0000:1a:00.0", "_UUID": r"GPU-[0-9a-f-]{36}"},
    ),
    "amd": Kind(
        'type == "gpu" && {0}.vendor == "amd"',
        ("/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"),
        {"_PCI": "0000:1b:00.0"},
    ),
    "intel": Kind(
        'type == "gpu" && {0}.vendor == "intel"',
        (
            "/dev/dri/by-path/pci-0000:1c:00.0-card",
            "/dev/dri/by-path/pci-0000:1c:00.0-render",
            "/dev/dri/card2",
            "/dev/dri/renderD130",
        ),
        {"_PCI": "0000:1c:00.0"},
    ),
    "rdma": Kind(
        'type == "nic" && {0}.rdma && {0}.ifName == "enp4f1np1"',
        ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs1"),
        {"_PCI": "0000:ca:00.1", "_RDMA": "mlx5_1", "_IFNAME": "enp4f1np1", "_NOTE": ".*stays on the host.*"},
    ),
    "xilinx": Kind(
        'type == "fpga" && {0}.vendor == "xilinx"',
        ("/dev/dri/renderD131",),
        {"_PCI": "0000:b3:00.1"},
    ),
    "intel-fpga": Kind(
        'type == "fpga" && {0}.vendor == "intel"',
        ("/dev/dfl-port.0",),
        {"_PCI": "0000:99:00.0"},
    ),
    "gaudi": Kind(
        'type == "accelerator"',
        ("/dev/accel/accel0", "/dev/accel/accel_controlD0"),
        {"_PCI": "0000:98:00.0"},
    ),
}
OWN = 'device.attributes["dra-agent.internal"]'


@pytest.fixture
def any_device(cluster: Cluster) -> Iterator[str]:
    """A DeviceClass of all devices of the agent."""
    spec = {"selectors": [{"cel": {"expression": 'device.driver == "dra-agent.internal"'}}]}
    cluster.api.create(CLASSES, {"metadata": {"name": "any-device"}, "spec": spec})
    yield "any-device"
    cluster.api.delete(CLASSES, "any-device")


def nodes(namespace: Namespace, pod: str) -> set[str]:
    """Return every file below /dev that is a device node, or replaces one, except containerd's own."""
    listed = namespace.execute(pod, "find /dev -type c -o -type b -o -type f").split()
    return {path for path in listed if not path.startswith(("/dev/pts/", "/dev/shm/", "/dev/mqueue/"))}


@pytest.mark.parametrize("kind", KINDS)
def test_container_gets_the_cdi_edits_of_its_device(
    agents: Agents, namespace: Namespace, any_device: str, kind: str
) -> None:
    expected = KINDS[kind]
    selector = f"{OWN}.{expected.selector.format(OWN)}"
    if kind == "rdma":
        selector = f'{OWN}.type == "nic" && {OWN}.?ifName.orValue("") == "enp4f1np1"'
    namespace.claim("one", request("device", any_device, selector))
    namespace.pod("user", claim="one", node="node-b")
    namespace.pod("without", node="node-b")
    namespace.running("user", "without")
    (result,) = namespace.results("one")
    device = re.sub(r"[^A-Z0-9]", "_", result["device"].upper())
    environment = namespace.environment("user")
    assert environment["DRA_AGENT_CLAIM"] == f"{namespace.name}/one"
    assert environment["DRA_AGENT_REQUEST_DEVICE"] == result["device"]
    assert environment[f"DRA_AGENT_DEVICE_{device}"] == f"{namespace.name}/one/device"
    for name, value in expected.variables.items():
        assert re.fullmatch(value, environment[f"DRA_AGENT_DEVICE_{device}{name}"])
    assert nodes(namespace, "user") - nodes(namespace, "without") == set(expected.nodes)
    # The nodes are those of the host, with the same numbers.
    for path in expected.nodes:
        assert numbers(namespace, path) == host_numbers(agents["node-b"], path), path


def numbers(namespace: Namespace, path: str) -> str:
    """Return type, major and minor of a container's node."""
    return namespace.execute("user", f"stat -c '%F %t:%T' {path}").strip()


def host_numbers(agent: Agent, path: str) -> str:
    status = (agent.host / path.lstrip("/")).stat()
    kind = "character special file" if stat.S_ISCHR(status.st_mode) else "regular empty file"
    return f"{kind} {os.major(status.st_rdev):x}:{os.minor(status.st_rdev):x}"


def test_intel_gpu_is_mounted_by_path(agents: Agents, namespace: Namespace) -> None:
    namespace.claim("one", request("gpu", "intel-gpu"))
    namespace.pod("user", claim="one", node="node-b")
    namespace.running("user")
    listed = namespace.execute("user", "ls /dev/dri/by-path").split()
    assert listed == ["pci-0000:1c:00.0-card", "pci-0000:1c:00.0-render"]
    mounts = namespace.execute("user", "grep by-path /proc/self/mounts").splitlines()
    assert len(mounts) == 2


def test_two_pods_never_share_a_device(agents: Agents, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    pods = [f"user-{number}" for number in range(8)]
    for pod in pods:
        namespace.pod(pod, template="one-gpu", node="node-a")
    namespace.running(*pods)
    seen = {pod: own_gpus(namespace, pod) for pod in pods}
    assert all(len(gpus) == 1 for gpus in seen.values()), seen
    assert len({gpu for gpus in seen.values() for gpu in gpus}) == 8
    held: dict[str, str] = {pod: namespace.results(namespace.claim_of(pod))[0]["device"] for pod in pods}
    assert len(set(held.values())) == 8
    for pod in pods:
        environment = namespace.environment(pod)
        for other, device in held.items():
            mentions = device in str(environment) or device.replace("-", "_").upper() in str(environment)
            assert mentions == (other == pod)
    # Nor by device number: the cgroup allows a container its own devices only.
    first, second = pods[:2]
    listed = namespace.execute(second, f"stat -c '%t %T' /dev/{next(iter(seen[second]))}").split()
    major, minor = (int(number, 16) for number in listed)
    output = namespace.execute(first, f"(mknod /tmp/stolen c {major} {minor} && head -c1 /tmp/stolen) 2>&1 || true")
    assert "Operation not permitted" in output or "Permission denied" in output, output


def own_gpus(namespace: Namespace, pod: str) -> set[str]:
    return set(namespace.execute(pod, "cd /dev; ls -d nvidia[0-9]*").split())
