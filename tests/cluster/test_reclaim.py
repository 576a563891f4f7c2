"""A host that is about to be taken: its claims leave it for the other node, and nothing else does."""

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
from cluster.kube.workload import Namespace, close, container, pod_spec, request
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
def doomed(start_agent: StartAgent, cluster: Cluster, aws: FakeAws, tmp_path: Path) -> Agent:
    """The agent of node-a, on a spot host of AWS; node-b has an agent too, and is cordoned at first."""
    config = tmp_path / "config.toml"
    config.write_text(f'[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\n[reclaim.aws]\nrebalance = "hint"\n')
    start_agent("node-b", "l40s")
    agent = start_agent("node-a", "l40s", "--config", str(config))
    close(cluster, "node-b")
    return agent


def open_node_b(cluster: Cluster) -> None:
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


def tainted(agent: Agent, effect: str) -> None:
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


def on_node(namespace: Namespace, app: str, node: str, count: int) -> list[Object]:
    """Wait until `count` pods of the app run on the node, and no other pod of it is anywhere."""
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
    doomed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.api.create(DEPLOYMENTS, deployment("serve", 2), namespace.name)
    on_node(namespace, "serve", "node-a", 2)
    plain = namespace.pod("plain", node="node-a")
    namespace.running("plain")
    assert pools(namespace) == {"node-a/gpu"}
    open_node_b(cluster)

    t0 = spot_notice(aws)
    on_node(namespace, "serve", "node-b", 2)
    t6 = time.time()
    assert pools(namespace) == {"node-b/gpu"}
    tainted(doomed, "NoExecute")
    until(lambda: send_request(doomed.state_dir, Status())["complete"], "every claim is released")
    status = send_request(doomed.state_dir, Status())
    assert [claim["state"] for claim in status["claims"]] == ["released", "released"]
    # What holds no device is not touched.
    assert namespace.get_pod("plain")["metadata"]["uid"] == plain["metadata"]["uid"]
    assert "deletionTimestamp" not in namespace.get_pod("plain")["metadata"]
    until(lambda: "ClaimsReleased" in node_events(cluster, "node-a"), "the node's Events say so")
    assert "ReclaimNotice" in node_events(cluster, "node-a")
    assert doomed.metrics()["dra_agent_reclaim_taint_publish_duration_seconds"] < 5 * cluster.api.pace()
    print(f"notice to pods running elsewhere: {t6 - t0:.2f} s; to tainted: {status['tainted_after']:.3f} s")


def test_a_hint_that_never_becomes_a_notice_moves_nobody(
    doomed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    before = namespace.pod("stays", template="one-gpu")
    namespace.running("stays")
    open_node_b(cluster)
    aws.set(rebalance={"noticeTime": "2026-10-27T08:22:00Z"})
    tainted(doomed, "NoSchedule")
    namespace.kept_away(request("gpu", "gpu"), node="node-a")
    namespace.pod("new", template="one-gpu")
    assert namespace.running("new")["spec"]["nodeName"] == "node-b"
    aws.set(rebalance=None)
    tainted(doomed, "")
    after = namespace.running("stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["spec"]["nodeName"] == "node-a"


def test_a_notice_that_is_taken_back_in_time_costs_nothing_to_who_asked_for_time(
    doomed: Agent, namespace: Namespace
) -> None:
    toleration = {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    namespace.template("patient", request("gpu", "gpu", tolerations=[toleration]))
    before = namespace.pod("patient", template="patient")
    namespace.running("patient")
    assert send_request(doomed.state_dir, Start("notice", 60.0, "a test"))["phase"] == "notice"
    tainted(doomed, "NoExecute")
    time.sleep(3)
    assert send_request(doomed.state_dir, Cancel())["phase"] == "cancelled"
    tainted(doomed, "")
    after = namespace.running("patient")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_an_agent_that_is_killed_in_the_middle_goes_on_with_the_same_time(
    doomed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    # It ignores SIGTERM, so its claim is held for the whole grace period.
    stubborn = container("main", "devices", command="trap '' TERM; while :; do sleep 1; done")
    body = deployment("serve", 1, terminationGracePeriodSeconds=15)
    body["spec"]["template"]["spec"]["containers"] = [stubborn]
    namespace.api.create(DEPLOYMENTS, body, namespace.name)
    on_node(namespace, "serve", "node-a", 1)
    open_node_b(cluster)
    spot_notice(aws)
    tainted(doomed, "NoExecute")
    before = taints(doomed)
    doomed.kill()
    doomed.start()
    doomed.wait_for_log("a reclaim goes on")
    until(lambda: send_request(doomed.state_dir, Status())["complete"], "every claim is released")
    assert taints(doomed) == before
    on_node(namespace, "serve", "node-b", 1)
    assert not [name for name in doomed.node.cdi_files() if "-claim_" in name]


def test_a_new_claim_is_not_prepared_on_a_doomed_host(doomed: Agent, namespace: Namespace) -> None:
    # Whoever tolerates the taint is still allocated here, and told why he does not start. The effect has to be named:
    # Kubernetes 1.37 evicts pods whose toleration is for any effect.
    tolerations = [{"key": KEY, "operator": "Exists", "effect": "NoExecute"}]
    namespace.template("late", request("gpu", "gpu", tolerations=tolerations))
    send_request(doomed.state_dir, Start("notice", 60.0))
    tainted(doomed, "NoExecute")
    namespace.pod("late", template="late")
    namespace.api.wait(
        lambda: any("this node is being reclaimed" in event for event in namespace.events("late")), "the pod is told"
    )
    send_request(doomed.state_dir, Cancel())
    # The kubelet tries again when it next looks at the pod anyway: after a minute and a half at most.
    namespace.running("late")


def test_an_api_server_that_is_away_at_the_notice(
    doomed: Agent, cluster: Cluster, namespace: Namespace, aws: FakeAws
) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.api.create(DEPLOYMENTS, deployment("serve", 1), namespace.name)
    on_node(namespace, "serve", "node-a", 1)
    open_node_b(cluster)
    apiserver = cluster.control_plane.apiserver
    apiserver.kill()
    spot_notice(aws)
    doomed.wait_for_log("reclaim: notice")
    time.sleep(3)
    apiserver.start()
    cluster.control_plane.ready()
    on_node(namespace, "serve", "node-b", 1)
    until(lambda: send_request(doomed.state_dir, Status())["complete"], "every claim is released")


def test_sigterm_without_a_notice_moves_nobody(doomed: Agent, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    before = namespace.pod("stays", template="one-gpu")
    namespace.running("stays")
    doomed.end()
    time.sleep(5)
    assert effects(doomed) == {""}
    after = namespace.running("stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and "deletionTimestamp" not in after["metadata"]
    doomed.start().ready()
