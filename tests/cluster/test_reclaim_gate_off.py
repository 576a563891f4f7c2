"""A node is left where the API server knows no device taints: the agent moves pods itself, or says that it may not."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.conftest import ROOT
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
from cluster.kube.workload import Namespace, close, request
from dra_agent.reclaim.control import Cancel, send_request

GATES = {"DRADeviceTaints": False, "DRADeviceTaintRules": False}
RIGHTS = ("podEviction=evict", "cordon=true")
OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "one-gpu"}
GOES = "serve"


@pytest.fixture(scope="module")
def untainting() -> Iterator[Cluster]:
    """A cluster of its own: gates are set when the API server starts."""
    with running(gates=GATES) as cluster:
        for file in sorted((ROOT / "examples" / "classes").glob("*.yaml")):
            cluster.kubectl("apply", "-f", str(file))
        yield cluster


@contextmanager
def inside(cluster: Cluster, name: str) -> Iterator[Namespace]:
    """A namespace that is emptied while the agents still run: without them no pod can go."""
    made = Namespace(cluster, name)
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def agents(cluster: Cluster, config: str, *rights: str) -> Iterator[Agent]:
    """An agent on both nodes; the one of node-a, which has these rights. node-b is closed to pods."""
    started: list[Agent] = []
    try:
        for node in cluster.nodes:
            file = node.directory / "config.toml"
            file.write_text(config)
            kubeconfig = cluster.identity(DRIVER, *rights).kubeconfig(node.name)
            agent = Agent(node, "l40s", kubeconfig, flags=("--config", str(file)))
            shutil.rmtree(agent.state_dir, ignore_errors=True)
            started.append(agent.start())
        for agent in started:
            agent.ready()
        close(cluster, "node-b")
        yield started[0]
    finally:
        cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
        for agent in started:
            agent.end()


def on_node_a(cluster: Cluster, namespace: Namespace) -> str:
    """Have a Deployment of one pod with a claim run on node-a, and open node-b; the uid of its pod."""
    namespace.template("one-gpu", request("gpu", "gpu"))
    kind, body = deployment(GOES, template(GOES, EXITS, 2, claims=[OF_TEMPLATE]))
    namespace.api.create(kind, body, namespace.name)
    (pod,) = run_on(namespace, GOES, "node-a")
    cluster.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
    return str(pod["metadata"]["uid"])


def test_pods_are_evicted_where_devices_cannot_be_tainted(untainting: Cluster) -> None:
    config = '[reclaim]\nevict = "auto"\ncordon = true\n'
    with agents(untainting, config, *RIGHTS) as doomed, inside(untainting, "evicted") as namespace:
        before = on_node_a(untainting, namespace)
        offered = set(doomed.devices())
        with History(namespace) as history:
            noticed = announce(doomed, 60)
            claims = all_released(doomed)
            run_on(namespace, GOES, "node-b")
        assert [claim["state"] for claim in claims] == ["released"]
        gone = history.deleted(before)
        reasons = [c.get("reason") for c in gone.object["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        assert reasons == ["EvictionByEvictionAPI"]
        moments = {"evicted": gone.at, "runs elsewhere": history.runs(GOES, "node-b").at}
        print({what: round(at - noticed, 1) for what, at in moments.items()})
        # What cannot be tainted is not on offer: no claim comes to a host that goes away.
        assert not doomed.devices()
        doomed.wait_for_log("devices are not tainted")
        assert "DRADeviceTaints" in doomed.said()
        assert no_specs(doomed)
        send_request(doomed.state_dir, Cancel())
        until(lambda: set(doomed.devices()) == offered, "the devices are on offer again")


@pytest.mark.parametrize(
    ("rights", "reasons"), [("podEviction=evict", ["EvictionByEvictionAPI"]), ("podEviction=delete", [])]
)
def test_who_is_deleted_at_once_learns_why_where_that_is_granted(
    untainting: Cluster, rights: str, reasons: list[str]
) -> None:
    with agents(untainting, '[reclaim]\nevict = "delete"\n', rights, "cordon=true") as doomed:
        with inside(untainting, f"deleted-{len(reasons)}") as namespace:
            before = on_node_a(untainting, namespace)
            with History(namespace) as history:
                noticed = announce(doomed, 60)
                all_released(doomed)
            gone = history.deleted(before)
            assert gone.at - noticed < 10 * untainting.api.pace()
            conditions = gone.object["status"]["conditions"]
            assert [one.get("reason") for one in conditions if one["type"] == "DisruptionTarget"] == reasons
        send_request(doomed.state_dir, Cancel())


def test_a_pod_that_waits_for_its_first_prepare_is_moved_too(untainting: Cluster) -> None:
    """It was bound to the node just before the notice, and the kubelet has not asked for its claim yet."""
    config = '[reclaim]\nevict = "auto"\n'
    with agents(untainting, config, *RIGHTS) as doomed, inside(untainting, "waits") as namespace:
        namespace.template("one-gpu", request("gpu", "gpu"))
        kubelet = doomed.node.kubelet
        kubelet.signal(signal.SIGSTOP)
        try:
            kind, body = deployment(GOES, template(GOES, EXITS, 2, claims=[OF_TEMPLATE]))
            namespace.api.create(kind, body, namespace.name)

            def bound() -> bool:
                pods = namespace.api.list(PODS, namespace.name)
                return [pod["spec"].get("nodeName") for pod in pods] == ["node-a"]

            until(bound, "the pod is bound to node-a")
            untainting.api.patch(NODES, "node-b", {"spec": {"unschedulable": None}})
            announce(doomed, 60)
        finally:
            kubelet.signal(signal.SIGCONT)
        (claim,) = all_refused(doomed)
        assert claim["unprepared"] is None
        assert [one["state"] for one in all_released(doomed)] == ["released"]
        run_on(namespace, GOES, "node-b")
        send_request(doomed.state_dir, Cancel())


def all_refused(agent: Agent) -> list[dict[str, Any]]:
    """Wait until the agent follows claims that it has refused to prepare; what it says of them."""
    found: list[dict[str, Any]] = []

    def refused() -> bool:
        found[:] = status(agent)["claims"]
        return bool(found)

    until(refused, f"a claim of {agent.node.name} is refused")
    assert {one["state"] for one in found} <= {"refused", "released"}
    return found


def test_without_the_right_to_evict_it_says_so(untainting: Cluster) -> None:
    config = '[reclaim]\nevict = "auto"\n'
    with agents(untainting, config) as doomed, inside(untainting, "stays") as namespace:
        before = on_node_a(untainting, namespace)
        announce(doomed, 15)
        said = doomed.wait_for_log("pods that the taint does not evict are not evicted.*")[0]
        assert "podEviction" in said, "what is to be done about it"
        time.sleep(5)
        (pod,) = run_on(namespace, GOES, "node-a")
        assert pod["metadata"]["uid"] == before
        now = status(doomed)
        assert not now["complete"] and now["tainted_after"] is None
        assert [(claim["state"], claim["pods"]) for claim in now["claims"]] == [("prepared", [pod["metadata"]["name"]])]
        send_request(doomed.state_dir, Cancel())
