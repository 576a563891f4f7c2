"""The kubelet knows the driver, whatever starts or fails first. The proof is always a pod that gets its claim."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLASSES, RefusedError
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.registration_proxy import interposed
from cluster.kube.workload import Namespace, container, request

StartAgent = Callable[..., Agent]
REGISTERED = r"registered with the kubelet"
HARDWARE = "vm-1gpu"


def use_the_gpu(namespace: Namespace, name: str, device_class: str = "gpu") -> None:
    """A pod gets the node's GPU, and gives it back."""
    namespace.claim(name, request("gpu", device_class))
    namespace.pod(name, claim=name, node="node-a")
    namespace.running(name)
    assert namespace.environment(name)["DRA_AGENT_REQUEST_GPU"] == namespace.results(name)[0]["device"]
    give_back(namespace, name)


def give_back(namespace: Namespace, name: str) -> None:
    namespace.delete_pod(name)
    namespace.gone(name)
    namespace.delete_claim(name)


def class_of(cluster: Cluster, driver: str) -> str:
    """The class of a driver's GPUs."""
    name = f"gpu-{driver[:40].strip('.-')}"
    expression = f'device.driver == "{driver}" && device.attributes["{driver}"].type == "gpu"'
    try:
        selectors = [{"cel": {"expression": expression}}]
        cluster.api.create(CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selectors}})
    except RefusedError as refused:
        assert refused.reason == "AlreadyExists"
    return name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_after_an_agent_restart(start_agent: StartAgent, namespace: Namespace, number: signal.Signals) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.claim("before", request("gpu", "gpu"))
    namespace.pod("before", claim="before", node="node-a")
    namespace.running("before")

    agent.process.end(number)
    began = time.monotonic()
    agent.start()
    agent.wait_for_log(REGISTERED)
    assert time.monotonic() - began < 10 * agent.node.api.pace()
    agent.ready()

    give_back(namespace, "before")
    use_the_gpu(namespace, "after")


def test_after_a_kubelet_restart(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.claim("before", request("gpu", "gpu"))
    namespace.pod("before", claim="before", node="node-a")
    namespace.running("before")

    agent.node.restart_kubelet()
    until(lambda: agent.said().count(REGISTERED) == 2, "the new kubelet registers the driver")
    agent.ready()

    assert namespace.get_pod("before")["status"]["containerStatuses"][0]["restartCount"] == 0
    give_back(namespace, "before")
    use_the_gpu(namespace, "after")


def test_agent_started_before_the_kubelet(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    kubelet = cluster.node("node-a").kubelet
    kubelet.end()
    agent = start_agent("node-a", HARDWARE, ready=False)
    agent.wait_for_log("info ready")
    status, why = agent.get("/readyz")
    assert (status, "waiting for the kubelet" in why) == (503, True)

    kubelet.start()
    agent.ready()
    use_the_gpu(namespace, "after")


def test_get_info_failing_first(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    node = cluster.node("node-a")
    apart = node.directory / "apart"
    agent = start_agent("node-a", HARDWARE, "--kubelet-dir", str(apart), ready=False)
    agent.wait_for_log("listening for the kubelet")
    with interposed(node.kubelet_dir, apart, DRIVER, GetInfo=2) as between:
        agent.ready()
        assert between.calls["GetInfo"] == 3
        use_the_gpu(namespace, "after")


def test_get_info_without_an_answer_first(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    node = cluster.node("node-a")
    node.kubelet.end()
    agent = start_agent("node-a", HARDWARE, ready=False)
    agent.wait_for_log("info ready")
    # A stopped process takes connections, because the kernel does, and answers nothing: the kubelet's second is over.
    agent.process.signal(signal.SIGSTOP)
    try:
        node.kubelet.start()
        until(lambda: DRIVER in refused(node.kubelet.said()), "the kubelet fails to register the driver")
    finally:
        agent.process.signal(signal.SIGCONT)
    agent.ready()
    use_the_gpu(namespace, "after")


def test_notify_failing_first(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    node = cluster.node("node-a")
    apart = node.directory / "apart"
    agent = start_agent("node-a", HARDWARE, "--kubelet-dir", str(apart), ready=False)
    agent.wait_for_log("listening for the kubelet")
    with interposed(node.kubelet_dir, apart, DRIVER, NotifyRegistrationStatus=1) as between:
        agent.ready()
        until(lambda: between.calls["NotifyRegistrationStatus"] == 2, "the kubelet notifies again")
        use_the_gpu(namespace, "after")
        # The kubelet forgets a driver that it could not notify, and takes it up anew.
        assert between.calls["GetInfo"] == 2


def test_long_driver_name(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    driver = "a-driver-whose-name-is-as-long-as-the-api-lets-it-be.long.example"[:63].rstrip(".")
    driver += "x" * (63 - len(driver))
    agent = start_agent("node-a", HARDWARE, driver=driver, ready=False)
    try:
        agent.ready()
        sockets = [path for path in agent.node.kubelet_dir.glob("plugins*/**/*") if path.is_socket()]
        assert sockets and max(len(str(path)) for path in sockets) <= 107
        use_the_gpu(namespace, "after", class_of(cluster, driver))
    finally:
        agent.end()


def test_two_drivers_side_by_side(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    other = "second.example"
    first = start_agent("node-a", HARDWARE)
    second = start_agent("node-a", "l40s", driver=other)
    namespace.claim("first", request("gpu", "gpu"))
    namespace.claim("second", request("gpu", class_of(cluster, other)))
    claims = [{"name": name, "resourceClaimName": name} for name in ("first", "second")]
    namespace.pod("both", claims=claims, containers=[container("main", "first", "second")], node="node-a")
    namespace.running("both")
    assert [namespace.results(name)[0]["driver"] for name in ("first", "second")] == [DRIVER, other]
    seen = namespace.environment("both")
    for claim in ("first", "second"):
        assert f"{namespace.name}/{claim}/gpu" in [seen.get(variable(namespace, claim))], f"{claim} is not in {seen}"

    # One that stops takes nothing of the other one's with it.
    untouched = first.slices()
    second.kill()
    time.sleep(1)
    assert first.slices() == untouched
    second.start()
    second.ready()
    namespace.delete_pod("both")
    namespace.gone("both")


def variable(namespace: Namespace, claim: str) -> str:
    """The variable that tells a container of its device."""
    device = str(namespace.results(claim)[0]["device"])
    return "DRA_AGENT_DEVICE_" + device.upper().replace("-", "_")


def refused(log: str) -> str:
    """What a kubelet says of registrations that failed."""
    marks = ("RegisterPlugin error", "failed to get plugin info")
    return "\n".join(line for line in log.splitlines() if any(mark in line for mark in marks))
