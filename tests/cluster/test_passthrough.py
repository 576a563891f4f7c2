"""Devices bound to vfio-pci for a pod and restored after it, and AMD GPUs partitioned by claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

FPGA, ALVEO, ALVEO_MANAGEMENT = "0000:99:00.0", "0000:b3:00.1", "0000:b3:00.0"
SETTINGS = f"""\
[[inventory.passthrough]]
when = 'device.attributes["{DRIVER}"].type == "fpga"'

[[inventory.partition]]
when = 'device.attributes["{DRIVER}"].vendor == "amd"'
mode = "amd"
"""
CLASS = f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {{name}}}}
spec:
  selectors:
  - cel: {{expression: 'device.driver == "{DRIVER}" && {{selector}}'}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "agent.toml").write_text(SETTINGS)
    return tmp_path / "agent.toml"


def attribute(name: str) -> str:
    return f'device.attributes["{DRIVER}"].{name}'


def at(address: str) -> str:
    return f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'


def passthrough(namespace: Namespace, name: str, address: str) -> None:
    """Create a claim for one device, of a class that selects only vfio-pci devices."""
    text = CLASS.replace("{name}", "passthrough").replace("{selector}", f'{attribute("type")} == "vfio"')
    namespace.cluster.kubectl("apply", "-f", "-", input=text)
    namespace.claim(name, request("device", "passthrough", at(address)))


def driver(agent: Agent, address: str) -> str | None:
    link = agent.host / "sys/bus/pci/devices" / address / "driver"
    return link.readlink().name if link.is_symlink() else None


def vfio_bindings(agent: Agent) -> list[str]:
    folder = agent.state_dir / "vfio"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_device_is_bound_for_its_pod_and_restored(start_agent: StartAgent, namespace: Namespace, config: Path) -> None:
    agent = start_agent("node-a", "mixed", "--config", str(config))
    before = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in agent.slices()}
    passthrough(namespace, "one", FPGA)
    namespace.pod("machine", claim="one")
    namespace.running("machine")
    assert driver(agent, FPGA) == "vfio-pci"
    group = (agent.host / "sys/bus/pci/devices" / FPGA / "iommu_group").resolve().name
    nodes = namespace.execute("machine", "find /dev/vfio /dev/iommu -type c -o -type f").split()
    assert {f"/dev/vfio/{group}", "/dev/vfio/vfio", "/dev/iommu"} <= set(nodes), nodes
    assert not namespace.execute("machine", "ls /dev").count("dfl-port")
    # A restarted agent keeps the binding, and writes no slice.
    agent.restart().ready()
    assert driver(agent, FPGA) == "vfio-pci"
    after = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in agent.slices()}
    assert after == before
    namespace.delete_pod("machine")
    namespace.wait_until_deleted("machine")
    until(lambda: driver(agent, FPGA) == "dfl-pci", "the device is back with its driver")
    until(lambda: vfio_bindings(agent) == [], "no binding is left")


def test_device_in_a_used_iommu_group_is_refused_by_name(
    start_agent: StartAgent, namespace: Namespace, config: Path
) -> None:
    agent = start_agent("node-a", "mixed", "--config", str(config))
    passthrough(namespace, "shared", ALVEO)
    namespace.pod("refused", claim="shared")
    until(
        lambda: any(f"{ALVEO_MANAGEMENT} (xclmgmt)" in event for event in namespace.events("refused")),
        "the pod's events name the neighbour",
    )
    assert (driver(agent, ALVEO), driver(agent, ALVEO_MANAGEMENT)) == ("xocl", "xclmgmt")
    assert vfio_bindings(agent) == []


def test_agent_killed_during_bind_or_restore(start_agent: StartAgent, namespace: Namespace, config: Path) -> None:
    agent = start_agent("node-a", "mixed", "--config", str(config))
    agent.simulate("kernel", FPGA, "unbind")  # the write never returns
    passthrough(namespace, "one", FPGA)
    namespace.pod("machine", claim="one")
    until(lambda: vfio_bindings(agent) == [f"{FPGA}.json"], "the agent has begun")
    agent.kill()
    agent.simulate("clear")
    agent.start().wait_for_log("info ready")
    assert driver(agent, FPGA) == "dfl-pci", "the incomplete binding is undone"
    namespace.running("machine")
    assert driver(agent, FPGA) == "vfio-pci"
    # And during the restore: the spec is removed first.
    agent.simulate("kernel", FPGA, "unbind")
    namespace.delete_pod("machine")
    until(lambda: not agent.node.cdi_files(), "the agent has begun the restore")
    agent.kill()
    assert driver(agent, FPGA) == "vfio-pci"
    agent.simulate("clear")
    agent.start().wait_for_log("info ready")
    until(lambda: driver(agent, FPGA) == "dfl-pci" and not vfio_bindings(agent), "the device is back")
    namespace.wait_until_deleted("machine")
    override = agent.host / "sys/bus/pci/devices" / FPGA / "driver_override"
    assert override.read_text().strip() == "(null)"


def test_claims_partition_an_amd_gpu_in_one_mode_at_a_time(
    start_agent: StartAgent, namespace: Namespace, config: Path
) -> None:
    agent = start_agent("node-b", "mi300x", "--config", str(config))
    assert sum(name.startswith("gpu-") for name in agent.devices()) == 8 * 15
    selector = at("0000:0c:00.0")
    mode = attribute("computePartition")
    text = CLASS.replace("{name}", "amd").replace("{selector}", f'{attribute("vendor")} == "amd"')
    namespace.cluster.kubectl("apply", "-f", "-", input=text)
    namespace.claim("eighths", request("gpu", "amd", selector, f'{mode} == "CPX"', count=2))
    namespace.pod("small", claim="eighths")
    namespace.running("small")
    nodes = namespace.execute("small", "ls /dev/dri").split()
    assert len([name for name in nodes if name.startswith("renderD")]) == 2, nodes
    current = agent.host / "sys/bus/pci/devices/0000:0c:00.0/current_compute_partition"
    assert current.read_text().strip() == "CPX"
    namespace.claim("half", request("gpu", "amd", selector, f'{mode} == "DPX"'))
    namespace.pod("large", claim="half")
    namespace.wait_for_scheduling_failure("large", "cannot allocate all claims")
    namespace.delete_pod("small")
    namespace.wait_until_deleted("small")
    namespace.delete_claim("eighths")
    namespace.running("large")
    assert current.read_text().strip() == "DPX"
    assert json.loads((agent.state_dir / "amd/gpu-0000-0c-00-0.json").read_text())["mode"] == "DPX"
