"""A spot interruption: the claims of the node move to the other node, and nothing else does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLAIMS, DEPLOYMENTS, NODES, PODS, Object
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, cordon, pod_spec, request
from dra_agent.reclaim.control import Cancel, Start, Status, send_request
from reclaim.metadata.aws import FakeAws

KEY = f"{DRIVER}/reclaim"
StartAgent = Callable[..., Agent]


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    service = FakeAws()
    yield service
    service.close()


@pytest.fixture
def reclaimed(start_agent: StartAgent, cluster: Cluster, aws: FakeAws, tmp_path: Path) -> Agent:
    """The agent of node-a, on a spot host of AWS; node-b has an agent too, and is cordoned at first."""
    config = tmp_path / "config.toml"
    config.write_text(f'[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n[reclaim.aws]\nrebalance = "hint"\n')
    start_agent("node-b", "l40s")
    agent = start_agent("node-a", "l40s", "--config", str(config))
    cordon(cluster, "node-b")
    return agent


def uncordon_node_b(cluster: Cluster) -> None:
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})


def spot_notice(aws: FakeAws, seconds: float = 120) -> float:
    when = datetime.now(UTC) + timedelta(seconds=seconds)
    return aws.set(spot={"action": "terminate", "time": when.strftime("%Y-%m-%dT%H:%M:%SZ")})


def taints(agent: Agent) -> dict[str, list[Object]]:
    return {
        name: [taint for taint in device.get("taints", []) if taint["key"] == KEY]
        for name, device in agent.devices().items()
    }


def effects(agent: Agent) -> set[str]:
    return {taint["effect"] for found in taints(agent).values() for taint in found or [{"effect": ""}]}


def wait_for_taint(agent: Agent, effect: str) -> None:
    until(lambda: effects(agent) == {effect}, f"every device of {agent.node.name} has {effect or 'no taint'}")


def deployment(name: str, replicas: int, **spec: Any) -> Object:
    body = pod_spec(
        claims=[{"name": "devices", "resourceClaimTemplateName": "one-gpu"}],
        containers=[container("main", "devices")],
        **{"restartPolicy": "Always", **spec},
    )
    template = {"metadata": {"labels": {"app": name}}, "spec": body}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def wait_for_pods(namespace: Namespace, app: str, node: str, count: int) -> list[Object]:
    """Wait until `count` pods of the app run on the node, and no other pod of it exists."""
    found: list[Object] = []

    def there() -> bool:
        found[:] = namespace.api.list(PODS, namespace.name, labels=f"app={app}")
        running = [pod for pod in found if pod["status"]["phase"] == "Running"]
        here = [pod for pod in running if pod["spec"].get("nodeName") == node]
        return len(here) == len(found) == count and all("deletionTimestamp" not in p["metadata"] for p in here)

    namespace.api.wait(there, f"{count} pods of {app} run on {node}")
    return found


def pools(namespace: Namespace) -> set[str]:
    claims = namespace.api.list(CLAIMS, namespace.name)
    return {result["pool"] for claim in claims for result in namespace.results(claim)}


def node_events(cluster: Cluster, node: str) -> str:
    return cluster.kubectl("get", "events", "-n", "default", "--field-selector", f"involvedObject.name={node}")


def test_a_spot_notice_moves_claims_to_the_other_node(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.api.create(DEPLOYMENTS, deployment("serve", 2), namespace.name)
    wait_for_pods(namespace, "serve", "node-a", 2)
    plain = namespace.pod("plain", node="node-a")
    namespace.running("plain")
    assert pools(namespace) == {"node-a/gpu"}
    uncordon_node_b(cluster)

    noticed_at = spot_notice(aws)
    wait_for_pods(namespace, "serve", "node-b", 2)
    moved_at = time.time()
    assert pools(namespace) == {"node-b/gpu"}
    wait_for_taint(reclaimed, "NoExecute")
    until(lambda: send_request(reclaimed.state_dir, Status())["complete"], "every claim is released")
    status = send_request(reclaimed.state_dir, Status())
    assert [claim["state"] for claim in status["claims"]] == ["released", "released"]
    # A pod without devices is not affected.
    assert namespace.get_pod("plain")["metadata"]["uid"] == plain["metadata"]["uid"]
    assert "deletionTimestamp" not in namespace.get_pod("plain")["metadata"]
    until(lambda: "ClaimsReleased" in node_events(cluster, "node-a"), "the node has the Event")
    assert "ReclaimNotice" in node_events(cluster, "node-a")
    assert reclaimed.metrics()["dra_agent_reclaim_taint_publish_duration_seconds"] < 5 * cluster.api.slowdown()
    print(
        f"notice to pods running elsewhere: {moved_at - noticed_at:.2f} s; to tainted: {status['tainted_after']:.3f} s"
    )


def test_a_hint_without_a_notice_evicts_no_pod(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    before = namespace.pod("stays", template="one-gpu")
    namespace.running("stays")
    uncordon_node_b(cluster)
    aws.set(rebalance={"noticeTime": "2026-10-27T08:22:00Z"})
    wait_for_taint(reclaimed, "NoSchedule")
    namespace.wait_until_no_device(request("gpu", "gpu"), node="node-a")
    namespace.pod("new", template="one-gpu")
    assert namespace.running("new")["spec"]["nodeName"] == "node-b"
    aws.set(rebalance=None)
    wait_for_taint(reclaimed, "")
    after = namespace.running("stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["spec"]["nodeName"] == "node-a"


def test_a_cancelled_notice_evicts_no_pod_with_a_toleration(reclaimed: Agent, namespace: Namespace) -> None:
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    namespace.template("patient", request("gpu", "gpu", tolerations=[toleration]))
    before = namespace.pod("patient", template="patient")
    namespace.running("patient")
    assert send_request(reclaimed.state_dir, Start("notice", 60.0, "a test"))["phase"] == "notice"
    wait_for_taint(reclaimed, "NoExecute")
    time.sleep(3)
    assert send_request(reclaimed.state_dir, Cancel())["phase"] == "cancelled"
    wait_for_taint(reclaimed, "")
    after = namespace.running("patient")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_killed_agent_continues_with_the_same_deadline(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    # It ignores SIGTERM, so its claim is held for the whole grace period.
    ignores_sigterm = container("main", "devices", command="trap '' TERM; while :; do sleep 1; done")
    body = deployment("serve", 1, terminationGracePeriodSeconds=15)
    body["spec"]["template"]["spec"]["containers"] = [ignores_sigterm]
    namespace.api.create(DEPLOYMENTS, body, namespace.name)
    wait_for_pods(namespace, "serve", "node-a", 1)
    uncordon_node_b(cluster)
    spot_notice(aws)
    wait_for_taint(reclaimed, "NoExecute")
    before = taints(reclaimed)
    reclaimed.kill()
    reclaimed.start()
    reclaimed.wait_for_log("continue a reclaim")
    until(lambda: send_request(reclaimed.state_dir, Status())["complete"], "every claim is released")
    assert taints(reclaimed) == before
    wait_for_pods(namespace, "serve", "node-b", 1)
    assert not [name for name in reclaimed.node.cdi_files() if "-claim_" in name]


def test_a_new_claim_is_not_prepared_on_a_reclaimed_host(reclaimed: Agent, namespace: Namespace) -> None:
    # A pod that tolerates the taint is still allocated here, and its Event has the reason why it does not start. The
    # effect has to be named: Kubernetes 1.37 evicts pods whose toleration is for any effect.
    tolerations = [{"key": KEY, "operator": "Exists", "effect": "NoExecute"}]
    namespace.template("late", request("gpu", "gpu", tolerations=tolerations))
    send_request(reclaimed.state_dir, Start("notice", 60.0))
    wait_for_taint(reclaimed, "NoExecute")
    namespace.pod("late", template="late")
    namespace.api.wait(
        lambda: any("this node is being reclaimed" in event for event in namespace.events("late")),
        "the pod has the Event",
    )
    send_request(reclaimed.state_dir, Cancel())
    # The kubelet retries at its next sync of the pod: after a minute and a half at most.
    namespace.running("late")


def test_a_notice_while_the_apiserver_is_down_is_acted_on_later(
    reclaimed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.api.create(DEPLOYMENTS, deployment("serve", 1), namespace.name)
    wait_for_pods(namespace, "serve", "node-a", 1)
    uncordon_node_b(cluster)
    apiserver = cluster.control_plane.apiserver
    apiserver.kill()
    spot_notice(aws)
    reclaimed.wait_for_log("reclaim: notice")
    time.sleep(3)
    apiserver.start()
    cluster.control_plane.ready()
    wait_for_pods(namespace, "serve", "node-b", 1)
    until(lambda: send_request(reclaimed.state_dir, Status())["complete"], "every claim is released")


def test_sigterm_without_a_notice_evicts_no_pod(reclaimed: Agent, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    before = namespace.pod("stays", template="one-gpu")
    namespace.running("stays")
    reclaimed.end()
    time.sleep(5)
    assert effects(reclaimed) == {""}
    after = namespace.running("stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and "deletionTimestamp" not in after["metadata"]
    reclaimed.start().ready()
