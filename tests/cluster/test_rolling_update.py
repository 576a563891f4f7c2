"""Old and new agent overlap on a node, as in a DaemonSet with maxSurge, while pods with claims start and stop."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import EVENTS
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_prepare import assert_single_holder, wait_until_gpu_is_free

StartAgent = Callable[..., Agent]
HARDWARE = "dgx-h100"
WORKERS = 3


class Load:
    """Pods with a GPU each, one after the other, until stopped."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.stopping = threading.Event()
        self.done = itertools.count()
        self.finished = 0
        self.slowest = 0.0
        self.failures: list[str] = []
        self.threads = [threading.Thread(target=self._work, args=(worker,)) for worker in range(WORKERS)]

    def _work(self, worker: int) -> None:
        for number in itertools.count():
            if self.stopping.is_set() or self.failures:
                return
            pod = f"load-{worker}-{number}"
            try:
                started = time.monotonic()
                self.namespace.pod(pod, template="gpu", node="node-a")
                self.namespace.running(pod)
                self.slowest = max(self.slowest, time.monotonic() - started)
                self.namespace.delete_pod(pod)
                self.namespace.wait_until_deleted(pod)
            except (AssertionError, OSError) as error:
                self.failures.append(f"{pod}: {error}")
            self.finished += 1

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def wait_for_pods(self, pods: int = 6) -> None:
        """Wait until that many more pods have started and ended."""
        before = self.finished
        until(lambda: self.failures or self.finished >= before + pods, f"{pods} more pods have started and ended")
        assert not self.failures


def published(agent: Agent) -> str:
    return json.dumps(agent.slices(), sort_keys=True)


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_rolling_update_under_load(start_agent: StartAgent, namespace: Namespace, end: str) -> None:
    old = start_agent("node-a", HARDWARE, "--pod-uid", "0d9cbd40-old", instance="old")
    namespace.template("gpu", request("gpu", "gpu"))
    slices = published(old)
    with assert_single_holder(old.node), Load(namespace) as load:
        load.wait_for_pods()
        new = start_agent("node-a", HARDWARE, "--pod-uid", "0d9cbd40-new", instance="new", ready=False)
        new.wait_for_log("registered with the kubelet")
        load.wait_for_pods()
        new.wait_for_log("info ready")
        if end == "SIGTERM":
            assert old.end() == 0
        else:
            old.kill()
        load.wait_for_pods()
        new.wait_for_log("this agent|claim prepared")
        load.wait_for_pods()
    assert "claim prepared" in new.read_log()
    failed = [
        event
        for event in namespace.api.list(EVENTS, namespace.name)
        if event["reason"].startswith("FailedPrepare") or "Unprepare" in event["message"]
    ]
    if end == "SIGTERM":
        assert not failed, [event["message"] for event in failed]
    assert published(new) == slices, "no slice was changed"
    assert "Traceback" not in old.read_log() + new.read_log()
    wait_until_gpu_is_free(new)
    if end == "SIGTERM":
        assert {path.name for path in new.node.kubelet_dir.rglob("*.sock") if "dra" in path.name} == {
            "dra-0d9cbd40-new.sock",
            "dra-agent.internal-0d9cbd40-new-reg.sock",
        }
