"""Reclaim with an API server without device taints: the agent evicts pods itself, or reports that it may not."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.conftest import apply_classes
from cluster.kube import build
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import NODES, PODS
from cluster.kube.cluster import Cluster, running
from cluster.kube.drain_probe import (
    EXITS,
    History,
    all_released,
    announce,
    deployment,
    no_specs,
    run_on,
    status,
    template,
)
from cluster.kube.process import until
from cluster.kube.workload import Namespace, cordon, request
from dra_agent.reclaim.control import Cancel, send_request

PERMISSIONS = ("podEviction=evict", "cordon=true")
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}
APP = "serve"


@pytest.fixture(scope="module")
def cluster_without_taints() -> Iterator[Cluster]:
    """A separate cluster: gates are set when the API server starts."""
    with running(gates=build.without_taints()) as cluster:
        apply_classes(cluster)
        yield cluster


@contextmanager
def temporary_namespace(cluster: Cluster, name: str) -> Iterator[Namespace]:
    """A namespace that is emptied while the agents run: without them no pod can terminate."""
    created = Namespace(cluster, name)
    try:
        yield created
    finally:
        created.remove()


@contextmanager
def agents(cluster: Cluster, config: str, *permissions: str) -> Iterator[Agent]:
    """Run an agent on both nodes; yield that of node-a, with these permissions. node-b is cordoned."""
    started: list[Agent] = []
    try:
        for node in cluster.nodes:
            file = node.directory / "config.toml"
            file.write_text(config)
            kubeconfig = cluster.identity(DRIVER, *permissions).kubeconfig(node.name)
            agent = Agent(node, "l40s", kubeconfig, flags=("--config", str(file)))
            shutil.rmtree(agent.state_dir, ignore_errors=True)
            started.append(agent.start())
        for agent in started:
            agent.ready()
        cordon(cluster, "node-b")
        yield started[0]
    finally:
        cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
        for agent in started:
            agent.end()


def run_deployment_on_node_a(cluster: Cluster, namespace: Namespace) -> str:
    """Run a Deployment of one pod with a claim on node-a, and uncordon node-b; return the uid of the pod."""
    namespace.template("one-gpu", request("gpu", "gpu"))
    kind, body = deployment(APP, template(APP, EXITS, 2, claims=[OF_TEMPLATE]))
    namespace.api.create(kind, body, namespace.name)
    (pod,) = run_on(namespace, APP, "node-a")
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
    return str(pod["metadata"]["uid"])


def test_pods_are_evicted_without_device_taints(cluster_without_taints: Cluster) -> None:
    config = '[reclaim]\nevict = "auto"\ncordon = true\n'
    with (
        agents(cluster_without_taints, config, *PERMISSIONS) as reclaimed,
        temporary_namespace(cluster_without_taints, "evicted") as namespace,
    ):
        before = run_deployment_on_node_a(cluster_without_taints, namespace)
        published = set(reclaimed.devices())
        with History(namespace) as history:
            noticed = announce(reclaimed, 60)
            claims = all_released(reclaimed)
            run_on(namespace, APP, "node-b")
        assert [claim["state"] for claim in claims] == ["released"]
        deletion = history.deleted(before)
        reasons = [c.get("reason") for c in deletion.object["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        assert reasons == ["EvictionByEvictionAPI"]
        moments = {"evicted": deletion.at, "runs elsewhere": history.runs(APP, "node-b").at}
        print({what: round(at - noticed, 1) for what, at in moments.items()})
        # Devices that cannot be tainted are withdrawn: no claim is allocated on a reclaimed host.
        assert not reclaimed.devices()
        reclaimed.wait_for_log("devices are not tainted")
        assert "DRADeviceTaints" in reclaimed.read_log()
        assert no_specs(reclaimed)
        send_request(reclaimed.state_dir, Cancel())
        until(lambda: set(reclaimed.devices()) == published, "the devices are published again")


@pytest.mark.parametrize(
    ("permissions", "reasons"), [("podEviction=evict", ["EvictionByEvictionAPI"]), ("podEviction=delete", [])]
)
def test_deleted_pods_have_a_reason_if_eviction_is_permitted(
    cluster_without_taints: Cluster, permissions: str, reasons: list[str]
) -> None:
    with agents(cluster_without_taints, '[reclaim]\nevict = "delete"\n', permissions, "cordon=true") as reclaimed:
        with temporary_namespace(cluster_without_taints, f"deleted-{len(reasons)}") as namespace:
            before = run_deployment_on_node_a(cluster_without_taints, namespace)
            with History(namespace) as history:
                noticed = announce(reclaimed, 60)
                all_released(reclaimed)
            deletion = history.deleted(before)
            assert deletion.at - noticed < 10 * cluster_without_taints.api.slowdown()
            conditions = deletion.object["status"]["conditions"]
            assert [one.get("reason") for one in conditions if one["type"] == "DisruptionTarget"] == reasons
        send_request(reclaimed.state_dir, Cancel())


def test_a_pod_that_waits_for_its_first_prepare_is_evicted(cluster_without_taints: Cluster) -> None:
    """It was bound just before the notice, and the kubelet has not asked to prepare its claim yet."""
    config = '[reclaim]\nevict = "auto"\n'
    with (
        agents(cluster_without_taints, config, *PERMISSIONS) as reclaimed,
        temporary_namespace(cluster_without_taints, "waits") as namespace,
    ):
        namespace.template("one-gpu", request("gpu", "gpu"))
        kubelet = reclaimed.node.kubelet
        kubelet.signal(signal.SIGSTOP)
        try:
            kind, body = deployment(APP, template(APP, EXITS, 2, claims=[OF_TEMPLATE]))
            namespace.api.create(kind, body, namespace.name)

            def bound() -> bool:
                pods = namespace.api.list(PODS, namespace.name)
                return [pod["spec"].get("nodeName") for pod in pods] == ["node-a"]

            until(bound, "the pod is bound to node-a")
            cluster_without_taints.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
            announce(reclaimed, 60)
        finally:
            kubelet.signal(signal.SIGCONT)
        (claim,) = wait_for_refused_claims(reclaimed)
        assert claim["unprepared"] is None
        assert [one["state"] for one in all_released(reclaimed)] == ["released"]
        run_on(namespace, APP, "node-b")
        send_request(reclaimed.state_dir, Cancel())


def wait_for_refused_claims(agent: Agent) -> list[dict[str, Any]]:
    """Wait until the agent tracks claims that it refused to prepare; return its records of them."""
    found: list[dict[str, Any]] = []

    def refused() -> bool:
        found[:] = status(agent)["claims"]
        return bool(found)

    until(refused, f"a claim of {agent.node.name} is refused")
    assert {one["state"] for one in found} <= {"refused", "released"}
    return found


def test_missing_eviction_permission_is_logged(cluster_without_taints: Cluster) -> None:
    config = '[reclaim]\nevict = "auto"\n'
    with (
        agents(cluster_without_taints, config) as reclaimed,
        temporary_namespace(cluster_without_taints, "stays") as namespace,
    ):
        before = run_deployment_on_node_a(cluster_without_taints, namespace)
        announce(reclaimed, 15)
        message = reclaimed.wait_for_log("pods that the taint does not evict are not evicted.*")[0]
        assert "podEviction" in message, "the log names the chart value"
        time.sleep(5)
        (pod,) = run_on(namespace, APP, "node-a")
        assert pod["metadata"]["uid"] == before
        current = status(reclaimed)
        assert not current["complete"] and current["tainted_after"] is None
        assert [(claim["state"], claim["pods"]) for claim in current["claims"]] == [
            ("prepared", [pod["metadata"]["name"]])
        ]
        send_request(reclaimed.state_dir, Cancel())
