"""Each simulated machine on a real cluster: a pod gets one device of every type, and one partition of a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request
from dra_simulate import profiles

ATTRIBUTES = f'device.attributes["{DRIVER}"]'
CLASS = "any-device-of-a-profile"
PARTITIONS = """
[[inventory.partition]]
mode = "mig"
when = 'device.attributes["dra-agent.internal"].vendor == "nvidia"'

[[inventory.partition]]
mode = "amd"
when = 'device.attributes["dra-agent.internal"].vendor == "amd"'

[[inventory.partition]]
mode = "sriov"
when = 'device.attributes["dra-agent.internal"].vendor == "intel"'
"""
WHOLE_ONLY = {
    "a100-40gb",
    "a30",
    "alveo-v80",
    "aws-p4d",
    "dgx-2",
    "dgx-spark",
    "gaudi3",
    "connectx-3",
    "l40s",
    "mi210",
    "mi250x",
    "mi300x-vf",
    "mixed",
    "strix-halo",
    "trn1",
    "trn2",
    "vm-1gpu",
}
"""Machines without a GPU that a claim can divide. GPUs of the Ampere generation need a reset first."""
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
MACHINES = [profile for profile in profiles() if profile != "cpu-only"]


@pytest.fixture
def device_class(cluster: Cluster) -> Iterator[str]:
    """Create a class of all devices of the driver."""
    expression = f'device.driver == "{DRIVER}"'
    manifest = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    yield CLASS
    cluster.kubectl("delete", "deviceclass", CLASS)


def type_of(device: Object) -> str:
    return str(device["attributes"]["type"]["string"])


def prepared(namespace: Namespace, agent: Agent, requests: list[Object]) -> dict[str, Object]:
    """Run a pod with a claim, and return the device of each request; the container has the variables of each."""
    namespace.claim("devices", *requests)
    namespace.pod("user", claim="devices")
    namespace.running("user")
    published = agent.devices()
    devices = {result["request"]: published[result["device"]] for result in namespace.results("devices")}
    environment = namespace.environment("user")
    for name, device in devices.items():
        assert environment[f"DRA_AGENT_REQUEST_{name.upper().replace('-', '_')}"] == device["name"]
    return devices


def released(namespace: Namespace, agent: Agent) -> None:
    uid = namespace.get_claim("devices")["metadata"]["uid"]
    assert any(uid in name for name in agent.node.cdi_files())
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(
        lambda: not any(uid in name for name in agent.node.cdi_files()), "the CDI spec of the claim is removed"
    )
    namespace.delete_claim("devices")


@pytest.mark.parametrize("profile", MACHINES)
def test_a_pod_gets_a_device_of_every_type(
    profile: str, start_agent: StartAgent, namespace: Namespace, device_class: str
) -> None:
    agent = start_agent("node-a", profile)
    assert agent.pools_are_complete()
    types = sorted({type_of(device) for device in agent.devices().values()})
    assert types
    devices = prepared(
        namespace, agent, [request(kind, device_class, f'{ATTRIBUTES}.type == "{kind}"') for kind in types]
    )
    assert {name: type_of(device) for name, device in devices.items()} == {kind: kind for kind in types}
    released(namespace, agent)


@pytest.mark.parametrize("profile", MACHINES)
def test_a_pod_gets_a_partition_of_a_gpu(
    profile: str, start_agent: StartAgent, cluster: Cluster, namespace: Namespace, device_class: str
) -> None:
    config = cluster.node("node-a").directory / "config.toml"
    config.write_text(PARTITIONS)
    agent = start_agent("node-a", profile, "--config", str(config))
    assert agent.pools_are_complete()
    partitions = [
        device for device in agent.devices().values() if "consumesCounters" in device and type_of(device) != "gpu"
    ]
    assert bool(partitions) == (profile not in WHOLE_ONLY)
    if profile in WHOLE_ONLY:
        return
    attributes = partitions[-1]["attributes"]
    selectors = [
        f'{ATTRIBUTES}.type == "{type_of(partitions[-1])}"',
        f'device.attributes["resource.kubernetes.io"].pciBusID == "{attributes[PCI_BUS_ID]["string"]}"',
    ]
    if "profile" in attributes:
        selectors.append(f'{ATTRIBUTES}.profile == "{attributes["profile"]["string"]}"')
    device = prepared(namespace, agent, [request("part", device_class, *selectors)])["part"]
    assert device["attributes"].get("profile") == attributes.get("profile")
    released(namespace, agent)
