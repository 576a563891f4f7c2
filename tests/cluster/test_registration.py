"""Registration with the kubelet in every order of starts and failures. The proof is always a pod with a claim."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import CLASSES, ApiStatusError
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.registration_proxy import proxy_registration
from cluster.kube.workload import Namespace, container, request

StartAgent = Callable[..., Agent]
REGISTERED_LOG = r"registered with the kubelet"
HARDWARE = "vm-1gpu"


def run_pod_with_gpu(namespace: Namespace, name: str, device_class: str = "gpu") -> None:
    """Run a pod with the node's GPU, and delete it."""
    namespace.claim(name, request("gpu", device_class))
    namespace.pod(name, claim=name, node="node-a")
    namespace.running(name)
    assert namespace.environment(name)["DRA_AGENT_REQUEST_GPU"] == namespace.results(name)[0]["device"]
    delete_pod_and_claim(namespace, name)


def delete_pod_and_claim(namespace: Namespace, name: str) -> None:
    namespace.delete_pod(name)
    namespace.wait_until_deleted(name)
    namespace.delete_claim(name)


def class_of(cluster: Cluster, driver: str) -> str:
    """Return the class of a driver's GPUs."""
    name = f"gpu-{driver[:40].strip('.-')}"
    expression = f'device.driver == "{driver}" && device.attributes["{driver}"].type == "gpu"'
    try:
        selectors = [{"cel": {"expression": expression}}]
        cluster.api.create(CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selectors}})
    except ApiStatusError as error:
        assert error.reason == "AlreadyExists"
    return name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_driver_is_registered_after_an_agent_restart(
    start_agent: StartAgent, namespace: Namespace, number: signal.Signals
) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.claim("before", request("gpu", "gpu"))
    namespace.pod("before", claim="before", node="node-a")
    namespace.running("before")

    agent.process.end(number)
    began = time.monotonic()
    agent.start()
    agent.wait_for_log(REGISTERED_LOG)
    assert time.monotonic() - began < 10 * agent.node.api.slowdown()
    agent.ready()

    delete_pod_and_claim(namespace, "before")
    run_pod_with_gpu(namespace, "after")


def test_driver_is_registered_after_a_kubelet_restart(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.claim("before", request("gpu", "gpu"))
    namespace.pod("before", claim="before", node="node-a")
    namespace.running("before")

    agent.node.restart_kubelet()
    until(lambda: agent.read_log().count(REGISTERED_LOG) == 2, "the new kubelet registers the driver")
    agent.ready()

    assert namespace.get_pod("before")["status"]["containerStatuses"][0]["restartCount"] == 0
    delete_pod_and_claim(namespace, "before")
    run_pod_with_gpu(namespace, "after")


def test_driver_is_registered_if_the_agent_starts_first(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    kubelet = cluster.node("node-a").kubelet
    kubelet.end()
    agent = start_agent("node-a", HARDWARE, ready=False)
    agent.wait_for_log("info ready")
    status, body = agent.get("/readyz")
    assert (status, "waiting for the kubelet" in body) == (503, True)

    kubelet.start()
    agent.ready()
    run_pod_with_gpu(namespace, "after")


def test_driver_is_registered_after_get_info_errors(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    node = cluster.node("node-a")
    agent_kubelet_dir = node.directory / "apart"
    agent = start_agent("node-a", HARDWARE, "--kubelet-dir", str(agent_kubelet_dir), ready=False)
    agent.wait_for_log("listening for the kubelet")
    with proxy_registration(node.kubelet_dir, agent_kubelet_dir, DRIVER, GetInfo=2) as proxy:
        agent.ready()
        assert proxy.calls["GetInfo"] == 3
        run_pod_with_gpu(namespace, "after")


def test_driver_is_registered_after_a_get_info_timeout(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    node = cluster.node("node-a")
    node.kubelet.end()
    agent = start_agent("node-a", HARDWARE, ready=False)
    agent.wait_for_log("info ready")
    # The kernel accepts connections of a stopped process: the call of the kubelet times out after a second.
    agent.process.signal(signal.SIGSTOP)
    try:
        node.kubelet.start()
        until(
            lambda: DRIVER in registration_errors(node.kubelet.read_log()), "the kubelet fails to register the driver"
        )
    finally:
        agent.process.signal(signal.SIGCONT)
    agent.ready()
    run_pod_with_gpu(namespace, "after")


def test_driver_is_registered_after_a_notification_error(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    node = cluster.node("node-a")
    agent_kubelet_dir = node.directory / "apart"
    agent = start_agent("node-a", HARDWARE, "--kubelet-dir", str(agent_kubelet_dir), ready=False)
    agent.wait_for_log("listening for the kubelet")
    with proxy_registration(node.kubelet_dir, agent_kubelet_dir, DRIVER, NotifyRegistrationStatus=1) as proxy:
        agent.ready()
        until(lambda: proxy.calls["NotifyRegistrationStatus"] == 2, "the kubelet notifies again")
        run_pod_with_gpu(namespace, "after")
        # The kubelet drops a driver that it could not notify, and registers it again.
        assert proxy.calls["GetInfo"] == 2


def test_driver_with_the_longest_name_is_registered(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    driver = "a-driver-whose-name-is-as-long-as-the-api-lets-it-be.long.example"[:63].rstrip(".")
    driver += "x" * (63 - len(driver))
    agent = start_agent("node-a", HARDWARE, driver=driver, ready=False)
    try:
        agent.ready()
        sockets = [path for path in agent.node.kubelet_dir.glob("plugins*/**/*") if path.is_socket()]
        assert sockets and max(len(str(path)) for path in sockets) <= 107
        run_pod_with_gpu(namespace, "after", class_of(cluster, driver))
    finally:
        agent.end()


def test_two_drivers_serve_one_node(cluster: Cluster, start_agent: StartAgent, namespace: Namespace) -> None:
    other = "second.example"
    first = start_agent("node-a", HARDWARE)
    second = start_agent("node-a", "l40s", driver=other)
    namespace.claim("first", request("gpu", "gpu"))
    namespace.claim("second", request("gpu", class_of(cluster, other)))
    claims = [{"name": name, "resourceClaimName": name} for name in ("first", "second")]
    namespace.pod("both", claims=claims, containers=[container("main", "first", "second")], node="node-a")
    namespace.running("both")
    assert [namespace.results(name)[0]["driver"] for name in ("first", "second")] == [DRIVER, other]
    environment = namespace.environment("both")
    for claim in ("first", "second"):
        assert f"{namespace.name}/{claim}/gpu" in [environment.get(variable(namespace, claim))], (
            f"{claim} is not in {environment}"
        )

    # Stopping one does not affect the other.
    untouched = first.slices()
    second.kill()
    time.sleep(1)
    assert first.slices() == untouched
    second.start()
    second.ready()
    namespace.delete_pod("both")
    namespace.wait_until_deleted("both")


def variable(namespace: Namespace, claim: str) -> str:
    """Return the name of the variable with the device."""
    device = str(namespace.results(claim)[0]["device"])
    return "DRA_AGENT_DEVICE_" + device.upper().replace("-", "_")


def registration_errors(log: str) -> str:
    """Return the log lines of a kubelet about failed registrations."""
    marks = ("RegisterPlugin error", "failed to get plugin info")
    return "\n".join(line for line in log.splitlines() if any(mark in line for mark in marks))
