"""Claims that are prepared before their pods are bound, with the real scheduler: failures, timeouts, restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import NODES
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, cordon
from cluster.test_passthrough import FPGA, attribute, driver, passthrough, vfio_bindings

PREPARED, FAILED = f"{DRIVER}/Prepared", f"{DRIVER}/PrepareFailed"
RULES = f"""\
[[inventory.passthrough]]
when = 'device.attributes["{DRIVER}"].type == "fpga"'
"""
AHEAD = f"""\
[[inventory.prepare_ahead]]
when = '{attribute("type")} == "vfio"'

[claims]
prepare_ahead_timeout = {{timeout_s}}
"""


@pytest.fixture
def start(start_agent: StartAgent, cluster: Cluster, tmp_path: Path) -> Any:
    """Start an agent whose FPGA is bound to vfio-pci for claims, by default before pods are bound."""

    def run(node: str, *, timeout_s: float = 300, ahead: bool = True) -> Agent:
        file = tmp_path / f"{node}.toml"
        file.write_text(RULES + (AHEAD.format(timeout_s=timeout_s) if ahead else ""))
        kubeconfig = cluster.identity(DRIVER, "bindingConditions=true").kubeconfig(node)
        agent = start_agent(node, "mixed", "--config", str(file), kubeconfig=kubeconfig)
        device = device_name(agent)
        until(lambda: ("bindingConditions" in agent.devices()[device]) is ahead, "the conditions are published")
        return agent

    return run


@pytest.fixture
def other_node_is_cordoned(cluster: Cluster) -> Iterator[None]:
    cordon(cluster, "node-b")
    yield
    uncordon(cluster)


def uncordon(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def device_name(agent: Agent) -> str:
    address = FPGA.replace(":", "-").replace(".", "-")
    (name,) = [name for name in agent.devices() if name.endswith(address)]
    return name


def conditions(namespace: Namespace, claim: str) -> dict[str, str]:
    devices = namespace.get_claim(claim).get("status", {}).get("devices") or [{}]
    return {one["type"]: one["status"] for one in devices[0].get("conditions") or ()}


def node_of(namespace: Namespace, pod: str) -> str:
    return str(namespace.get_pod(pod)["spec"].get("nodeName", ""))


def pool_of(namespace: Namespace, claim: str) -> str:
    results = namespace.get_claim(claim).get("status", {}).get("allocation", {}).get("devices", {}).get("results")
    return str(results[0]["pool"]) if results else ""


def prepare_requests(agent: Agent) -> dict[str, int]:
    """Return the kubelet's completed requests to prepare a claim, by result; attempts ahead of them do not count."""
    metrics = agent.metrics()
    counts = {
        result: int(metrics[f'dra_agent_dra_requests_total{{operation="prepare",result="{result}"}}'])
        for result in ("ok", "retryable", "permanent", "defect")
    }
    return {result: count for result, count in counts.items() if count}


def failed_prepares(namespace: Namespace, pod: str) -> int:
    return sum("FailedPrepareDynamicResources" in event for event in namespace.events(pod))


def test_pod_is_bound_after_its_claim_is_prepared(start: Any, namespace: Namespace) -> None:
    agent = start("node-a")
    agent.simulate("kernel", FPGA, "unbind")  # the write does not return yet
    passthrough(namespace, "one", FPGA)
    begun = time.monotonic()
    namespace.pod("machine", claim="one")
    until(lambda: vfio_bindings(agent), "the set-up has begun")
    assert node_of(namespace, "machine") == "", "the scheduler waits"
    assert namespace.get_pod("machine")["status"]["nominatedNodeName"] == "node-a"
    agent.simulate("clear")
    namespace.running("machine")
    print(f"time to running, prepared ahead: {time.monotonic() - begun:.1f} s")
    assert conditions(namespace, "one") == {PREPARED: "True", FAILED: "False"}
    assert driver(agent, FPGA) == "vfio-pci"
    assert agent.read_log().count("claim prepared") == 1, "the kubelet's request adopts it"
    namespace.delete_pod("machine")
    namespace.wait_until_deleted("machine")
    until(lambda: driver(agent, FPGA) == "dfl-pci" and not vfio_bindings(agent), "the device is back")


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "on_request"])
def test_requests_and_time_of_a_slow_set_up(start: Any, namespace: Namespace, *, ahead: bool) -> None:
    """The same set-up, which takes longer than its first attempt: before the pod is bound, or when the kubelet asks."""
    agent = start("node-a", ahead=ahead)
    agent.simulate("kernel", FPGA, "unbind")
    passthrough(namespace, "one", FPGA)
    begun = time.monotonic()
    namespace.pod("machine", claim="one")
    retried = "claim not prepared ahead yet"
    until(
        lambda: retried in agent.read_log() if ahead else failed_prepares(namespace, "machine"),
        "the first attempt has failed",
    )
    assert bool(node_of(namespace, "machine")) is not ahead, "the pod is bound if the kubelet asks"
    agent.simulate("clear")  # the set-up can end now
    cleared = time.monotonic()
    namespace.running("machine")
    requests, attempts = prepare_requests(agent), agent.read_log().count(retried) + 1 if ahead else 0
    print(
        f"slow set-up, {'prepared ahead' if ahead else 'prepared on request'}: running after "
        f"{time.monotonic() - begun:.1f} s, {time.monotonic() - cleared:.1f} s after the set-up could end; "
        f"requests of the kubelet {requests}, attempts ahead {attempts}"
    )
    if ahead:
        assert requests == {"ok": 1}, "the kubelet asks once, for a prepared claim"
        assert failed_prepares(namespace, "machine") == 0
    else:
        assert requests["ok"] == 1 and requests["retryable"] >= 1


@pytest.mark.usefixtures("other_node_is_cordoned")
@pytest.mark.parametrize("failure", ["fails", "hangs"])
def test_after_a_failure_the_pod_goes_to_another_node(
    start: Any, namespace: Namespace, cluster: Cluster, failure: str
) -> None:
    first, second = start("node-a", timeout_s=5), start("node-b")
    first.simulate("kernel", FPGA, "unbind", *(("--errno", "16") if failure == "fails" else ()))
    passthrough(namespace, "one", FPGA)
    begun = time.monotonic()
    namespace.pod("machine", claim="one")
    until(lambda: pool_of(namespace, "one").startswith("node-a/"), "the claim is allocated on node-a")
    uncordon(cluster)
    namespace.running("machine")
    print(f"time to running elsewhere after a set-up that {failure}: {time.monotonic() - begun:.1f} s")
    assert not prepare_requests(first), "the kubelet of the first node never asks"
    assert node_of(namespace, "machine") == "node-b" and driver(second, FPGA) == "vfio-pci"
    taints = first.devices()[device_name(first)]["taints"]
    assert [(taint["key"], taint["effect"]) for taint in taints] == [(f"{DRIVER}/setup-failed", "NoSchedule")]
    assert any("PrepareFailed" in event or "not prepared on node node-a" in event for event in namespace.events("one"))
    first.simulate("clear")
    until(lambda: driver(first, FPGA) == "dfl-pci" and not vfio_bindings(first), "nothing is left on node-a")


@pytest.mark.usefixtures("other_node_is_cordoned")
def test_without_conditions_the_pod_stays_on_the_node_of_the_failure(
    start: Any, namespace: Namespace, cluster: Cluster
) -> None:
    """The same failure, for comparison: the kubelet tries again on the same device."""
    first, _ = start("node-a", ahead=False), start("node-b", ahead=False)
    first.simulate("kernel", FPGA, "unbind", "--errno", "16")
    passthrough(namespace, "one", FPGA)
    begun = time.monotonic()
    namespace.pod("machine", claim="one")
    until(lambda: node_of(namespace, "machine") == "node-a", "the pod is bound")
    uncordon(cluster)
    until(
        lambda: any("FailedPrepareDynamicResources" in event for event in namespace.events("machine")),
        "the kubelet reports the failure",
    )
    first.simulate("clear")
    namespace.running("machine")
    print(
        f"time to running on the same node, repaired at once: {time.monotonic() - begun:.1f} s; "
        f"requests of the kubelet {prepare_requests(first)}"
    )
    assert node_of(namespace, "machine") == "node-a"


@pytest.mark.parametrize("component", ["scheduler", "agent"])
def test_a_restart_while_a_pod_waits(start: Any, namespace: Namespace, cluster: Cluster, component: str) -> None:
    agent = start("node-a")
    agent.simulate("kernel", FPGA, "unbind")
    passthrough(namespace, "one", FPGA)
    namespace.pod("machine", claim="one")
    until(lambda: vfio_bindings(agent), "the set-up has begun")
    uid = namespace.get_claim("one")["metadata"]["uid"]
    stamp = namespace.get_claim("one")["status"]["allocation"]["allocationTimestamp"]
    if component == "scheduler":
        cluster.control_plane.scheduler.kill()
        agent.simulate("clear")
        until(lambda: conditions(namespace, "one").get(PREPARED) == "True", "the claim is prepared")
        cluster.control_plane.scheduler.start()
    else:
        agent.kill()
        agent.simulate("clear")
        agent.start().ready()
    namespace.running("machine")
    claim = namespace.get_claim("one")
    assert (claim["metadata"]["uid"], claim["status"]["allocation"]["allocationTimestamp"]) == (uid, stamp)
    assert conditions(namespace, "one")[PREPARED] == "True" and driver(agent, FPGA) == "vfio-pci"


def test_a_pod_that_is_deleted_while_it_waits_leaves_nothing(
    start: Any, namespace: Namespace, cluster: Cluster
) -> None:
    agent = start("node-a")
    cluster.control_plane.scheduler.kill()
    agent.simulate("kernel", FPGA, "unbind")
    passthrough(namespace, "one", FPGA)
    namespace.pod("machine", claim="one")
    cluster.control_plane.scheduler.start()
    until(lambda: vfio_bindings(agent), "the set-up has begun")
    cluster.control_plane.scheduler.kill()  # it would bind the pod within seconds
    agent.simulate("clear")
    until(lambda: conditions(namespace, "one").get(PREPARED) == "True", "the claim is prepared")
    namespace.delete_pod("machine")
    namespace.wait_until_deleted("machine")
    until(lambda: driver(agent, FPGA) == "dfl-pci" and not vfio_bindings(agent), "the device is back")
    assert not agent.node.cdi_files()
    cluster.control_plane.scheduler.start()
