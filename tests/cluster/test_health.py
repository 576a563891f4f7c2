"""A device fails while a pod holds it: the taint, the device health in the pod's status, and the recovery."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import Object
from cluster.kube.process import LONG_TIMEOUT_S
from cluster.kube.workload import Namespace, request

SETTINGS = """\
[health]
recovery_seconds = 2
event_seconds = 30
"""
XID = f"{DRIVER}/xid-95"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "agent.toml").write_text(SETTINGS)
    return tmp_path / "agent.toml"


def address(device: str) -> str:
    """`gpu-0000-1b-00-0` → `0000:1b:00.0`."""
    domain, bus, slot, function = device.split("-")[1:5]
    return f"{domain}:{bus}:{slot}.{function}"


def taints(agent: Agent, device: str) -> list[Object]:
    return list(agent.devices()[device].get("taints", []))


def resource_health(namespace: Namespace, pod: str) -> list[Object]:
    """Return the device health of the pod's container as the kubelet reports it."""
    statuses = namespace.get_pod(pod)["status"]["containerStatuses"]
    return [
        resource for entry in statuses[0].get("allocatedResourcesStatus", []) for resource in entry.get("resources", [])
    ]


def wait_for_health(namespace: Namespace, pod: str, health: str, timeout_s: float = LONG_TIMEOUT_S) -> Object:
    def reported() -> bool:
        return [resource["health"] for resource in resource_health(namespace, pod)] == [health]

    namespace.api.wait(
        reported, f"the kubelet reports {health} for {pod}, not {resource_health(namespace, pod)}", timeout_s
    )
    return resource_health(namespace, pod)[0]


def versions(agent: Agent) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in agent.slices()}


def test_xid_sets_taint_and_pod_status_until_recovery(
    start_agent: StartAgent, namespace: Namespace, config: Path
) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one")
    namespace.running("user")
    device = namespace.results("one")[0]["device"]
    wait_for_health(namespace, "user", "Healthy")

    before = versions(agent)
    raised = time.time()
    agent.simulate("xid", address(device), "13")  # an application error: no taint
    agent.simulate("xid", address(device), "95")
    namespace.api.wait(lambda: taints(agent, device), "the GPU is tainted")
    (taint,) = taints(agent, device)
    assert (taint["key"], taint["effect"]) == (XID, "NoSchedule")
    assert int(raised) <= time.mktime(time.strptime(taint["timeAdded"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    changed = [name for name, version in versions(agent).items() if before[name] != version]
    assert len(changed) == 1 and versions(agent).keys() == before.keys(), "one slice is edited in place"

    reported = wait_for_health(namespace, "user", "Unhealthy")
    assert "XID 95" in reported.get("message", "XID 95"), reported
    # Another pod gets another GPU, and the holder keeps this one.
    namespace.claim("two", request("gpu", "gpu", count=7))
    namespace.pod("other", claim="two")
    namespace.running("other")
    assert device not in [result["device"] for result in namespace.results("two")]
    assert namespace.get_pod("user")["status"]["phase"] == "Running"

    namespace.api.wait(lambda: not taints(agent, device), "the taint is gone")
    wait_for_health(namespace, "user", "Healthy")
    assert namespace.get_pod("user")["status"]["phase"] == "Running"
    metrics = agent.metrics()
    assert metrics['dra_agent_device_cause_begun_total{cause="xid-95"}'] == 1


def test_fatal_xid_evicts_the_pod_also_over_an_agent_restart(
    start_agent: StartAgent, namespace: Namespace, tmp_path: Path
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[health]\nrecovery_seconds = 2\nevent_seconds = 600\n")
    agent = start_agent("node-a", "dgx-h100", "--config", str(file))
    namespace.claim("one", request("gpu", "gpu"))
    tolerated = {"key": f"{DRIVER}/xid-79", "operator": "Exists", "effect": "NoExecute"}
    namespace.claim("brave", request("gpu", "gpu", tolerations=[tolerated]))
    for name in ("one", "brave"):
        namespace.pod(name, claim=name)
    namespace.running("one", "brave")
    devices = {name: namespace.results(name)[0]["device"] for name in ("one", "brave")}
    for device in devices.values():
        agent.simulate("xid", address(device), "79")
    namespace.wait_until_deleted("one")
    # The second event is another write of the slices.
    namespace.api.wait(lambda: all(taints(agent, device) for device in devices.values()), "both GPUs have a taint")
    published = {device: taints(agent, device) for device in devices.values()}
    assert {taint["effect"] for found in published.values() for taint in found} == {"NoExecute"}
    agent.restart().ready()
    assert {device: taints(agent, device) for device in devices.values()} == published, "with the same times"
    assert namespace.get_pod("brave")["status"]["phase"] == "Running"


def test_flapping_device_is_not_rewritten(start_agent: StartAgent, namespace: Namespace, config: Path) -> None:
    agent = start_agent("node-a", "dgx-h100", "--config", str(config))
    device = next(name for name in agent.devices() if name.startswith("gpu-"))
    agent.simulate("xid", address(device), "95")
    namespace.api.wait(lambda: taints(agent, device), "the GPU is tainted")
    once = versions(agent)
    for _ in range(5):
        agent.simulate("xid", address(device), "95")
        time.sleep(1.2)
    assert versions(agent) == once
    assert agent.metrics()["dra_agent_device_flaps_suppressed_total"] >= 3
