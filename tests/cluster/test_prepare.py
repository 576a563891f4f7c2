"""Prepare and unprepare under failures: a device never has two holders, and every pod eventually runs.

The kubelet retries a failed prepare at its next full sync of the pod, after 60 to 90 s.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cluster.kube.agent import Agent
from cluster.kube.cluster import Cluster
from cluster.kube.node import Node
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

StartAgent = Callable[..., Agent]
HARDWARE = "vm-1gpu"
IGNORES_SIGTERM = "trap '' TERM; while :; do sleep 1; done"


def holders(node: Node) -> dict[str, set[str]]:
    """Return the CDI files of claims by the device node that their containers get."""
    found: dict[str, set[str]] = {}
    for name, data in node.cdi_files().items():
        for device in json.loads(data)["devices"]:
            for entry in device["containerEdits"].get("deviceNodes", ()):
                if entry["path"].removeprefix("/dev/nvidia").isdigit():
                    found.setdefault(entry["path"], set()).add(name)
    return found


@contextmanager
def assert_single_holder(node: Node) -> Iterator[None]:
    """Poll during the block and assert that no GPU is in the specs of two claims."""
    done = threading.Event()
    violations: list[tuple[str, set[str]]] = []

    def poll() -> None:
        while not done.wait(0.005):
            try:
                violations.extend((device, files) for device, files in holders(node).items() if len(files) > 1)
            except (FileNotFoundError, json.JSONDecodeError):
                continue  # removed while it was read

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not violations


def wait_until_gpu_is_free(agent: Agent) -> None:
    """Wait until no spec and no prepared claim is left."""
    until(lambda: not agent.node.cdi_files(), "no spec is left")
    until(lambda: "dra_agent_prepared_claims 0.0" in agent.get("/metrics")[1], "no claim is prepared")


def test_prepare_fails_then_works(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", HARDWARE)
    device = agent.host / "dev" / "nvidia0"
    hidden = device.rename(device.with_name("hidden"))
    namespace.claim("gpu", request("gpu", "gpu"))
    namespace.pod("user", claim="gpu", node="node-a")
    namespace.wait_for_prepare_failure("user", "/dev/nvidia0")
    assert namespace.get_pod("user")["status"]["phase"] == "Pending"
    assert agent.node.cdi_files() == {}
    hidden.rename(device)
    namespace.running("user")
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    wait_until_gpu_is_free(agent)


def test_prepare_too_slow_then_works(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", HARDWARE)
    os.kill(agent.process.pid, signal.SIGSTOP)
    try:
        namespace.claim("gpu", request("gpu", "gpu"))
        namespace.pod("user", claim="gpu", node="node-a")
        namespace.wait_for_prepare_failure("user", "DeadlineExceeded")
    finally:
        os.kill(agent.process.pid, signal.SIGCONT)
    namespace.running("user")
    assert namespace.environment("user")["DRA_AGENT_REQUEST_GPU"] == namespace.results("gpu")[0]["device"]
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    wait_until_gpu_is_free(agent)


@pytest.mark.parametrize("grace", [None, 0], ids=["deleted", "force-deleted"])
def test_kubelet_down_while_a_pod_is_deleted(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, grace: int | None
) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.template("gpu", request("gpu", "gpu"))
    namespace.pod("first", template="gpu", node="node-a")
    namespace.running("first")
    assert len(holders(agent.node)) == 1
    agent.node.kubelet.kill()
    namespace.delete_pod("first", grace=grace)
    namespace.pod("second", template="gpu", node="node-a")
    time.sleep(2)
    assert len(holders(agent.node)) == 1, "the container still runs and holds its device"
    with assert_single_holder(agent.node):
        agent.node.kubelet.start()
        namespace.wait_until_deleted("first")
        namespace.running("second")
    namespace.delete_pod("second")
    namespace.wait_until_deleted("second")
    wait_until_gpu_is_free(agent)


@pytest.mark.parametrize("grace", [None, 0], ids=["deleted", "force-deleted"])
def test_pod_deleted_while_preparing(start_agent: StartAgent, namespace: Namespace, grace: int | None) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.claim("gpu", request("gpu", "gpu"))
    os.kill(agent.process.pid, signal.SIGSTOP)
    try:
        namespace.pod("first", claim="gpu", node="node-a")
        until(lambda: namespace.get_claim("gpu").get("status", {}).get("reservedFor"), "the claim is reserved")
        time.sleep(2)  # the kubelet has called and waits
        namespace.delete_pod("first", grace=grace)
        time.sleep(1)
    finally:
        os.kill(agent.process.pid, signal.SIGCONT)
    namespace.wait_until_deleted("first")
    wait_until_gpu_is_free(agent)
    namespace.pod("second", claim="gpu", node="node-a")
    namespace.running("second")
    namespace.delete_pod("second")
    namespace.wait_until_deleted("second")
    wait_until_gpu_is_free(agent)


def test_pod_force_deleted_never_two_holders(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.template("gpu", request("gpu", "gpu"))
    namespace.pod("first", template="gpu", node="node-a", command=IGNORES_SIGTERM, terminationGracePeriodSeconds=20)
    namespace.running("first")
    first = namespace.claim_of("first")
    uid = first["metadata"]["uid"]
    with assert_single_holder(agent.node):
        namespace.delete_pod("first", grace=0)
        namespace.wait_until_deleted("first")
        namespace.pod("second", template="gpu", node="node-a")
        # The scheduler allocates the device to the second at once; the agent waits until the first has ended.
        until(lambda: namespace.results(namespace.claim_of("second")), "the second claim is allocated")
        assert namespace.results(namespace.claim_of("second"))[0]["device"] == namespace.results(first)[0]["device"]
        namespace.running("second")
    assert not [name for name in agent.node.cdi_files() if uid in name]
    namespace.delete_pod("second")
    namespace.wait_until_deleted("second")
    wait_until_gpu_is_free(agent)
