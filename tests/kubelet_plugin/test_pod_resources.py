"""The containers of claims, from a fake kubelet that lists them, refuses, hangs or returns other bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_agent.inventory.model import Inventory
from dra_agent.kubelet_plugin import pod_resources
from dra_agent.kubelet_plugin.pod_resources import MAX_CONTAINERS, SOCKET, ClaimContainers
from dra_agent.kubelet_plugin.proto import podresources_v1_pb2 as messages
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot
from dra_agent.metrics.telemetry import TelemetryMetrics
from dra_agent.telemetry.sampler import TelemetrySnapshot
from eventually import eventually

INTERVAL_S = 0.02


class Kubelet:
    """Serves the PodResources API; `respond` returns the bytes of each response, or aborts."""

    def __init__(self, directory: Path) -> None:
        self.calls = 0
        self.response = b""
        self.code: grpc.StatusCode | None = None
        self.released = threading.Event()
        self.released.set()
        (directory / SOCKET).parent.mkdir(parents=True)
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self._list, request_deserializer=lambda data: data, response_serializer=lambda data: data
        )
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        self._server.add_insecure_port(f"unix://{directory / SOCKET}")
        self._server.start()

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        self.released.wait(60)
        if self.code is not None:
            context.abort(self.code, "no list")
        return self.response

    def use(self, *containers: tuple[str, str, str, str]) -> None:
        """Let containers use claims: namespace, claim, pod and container."""
        response = messages.ListPodResourcesResponse()
        for namespace, claim, pod, container in containers:
            listed = response.pod_resources.add(name=pod, namespace=namespace).containers.add(name=container)
            listed.dynamic_resources.add(claim_name=claim, claim_namespace=namespace)
        self.response = response.SerializeToString()

    def close(self) -> None:
        self.released.set()
        self._server.stop(None).wait()


@pytest.fixture
def kubelet(short_path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(short_path)
    yield kubelet
    kubelet.close()


@pytest.fixture
def listed(short_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """The containers of claims of namespace team."""
    containers = ClaimContainers(short_path, INTERVAL_S)
    containers.start()
    yield lambda *claims: containers.of({("team", claim) for claim in claims})
    containers.stop()


def test_containers_of_prepared_claims_are_those_of_the_kubelet(
    kubelet: Kubelet, listed: Callable[..., list[Any]]
) -> None:
    kubelet.use(
        ("team", "train", "train-0", "worker"),
        ("team", "train", "train-0", "sidecar"),
        ("team", "train", "joined-later", "worker"),
        ("team", "of-another-driver", "train-0", "worker"),
        ("other", "train", "train-0", "worker"),
    )
    expected = [
        ("team", "train", "joined-later", "worker"),
        ("team", "train", "train-0", "sidecar"),
        ("team", "train", "train-0", "worker"),
    ]
    eventually(lambda: listed("train") == expected)
    assert listed() == [] == listed("missing")
    kubelet.use(("team", "train", "train-0", "worker"))
    eventually(lambda: listed("train") == expected[2:])


@pytest.mark.parametrize("failure", ["refused", "malformed"])
def test_a_kubelet_that_fails_has_no_containers_until_it_responds(
    kubelet: Kubelet, listed: Callable[..., list[Any]], failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.use(("team", "train", "train-0", "worker"))
    eventually(lambda: bool(listed("train")))
    response = kubelet.response
    if failure == "refused":
        kubelet.code = grpc.StatusCode.RESOURCE_EXHAUSTED
    else:
        kubelet.response = b"\xff\xff"
    eventually(lambda: listed("train") == [])
    calls = kubelet.calls
    eventually(lambda: kubelet.calls > calls + 1)
    assert caplog.text.count("containers of claims are not known") == 1
    kubelet.code, kubelet.response = None, response
    eventually(lambda: bool(listed("train")))


def test_a_kubelet_that_hangs_ends_the_values_and_nothing_else_waits(
    kubelet: Kubelet, listed: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources, "CALL_TIMEOUT_S", 0.2)
    kubelet.use(("team", "train", "train-0", "worker"))
    eventually(lambda: bool(listed("train")))
    kubelet.released.clear()
    eventually(lambda: listed("train") == [])


def test_a_kubelet_that_is_away_is_found_later(listed: Callable[..., list[Any]], short_path: Path) -> None:
    assert listed("train") == []
    kubelet = Kubelet(short_path)
    try:
        kubelet.use(("team", "train", "train-0", "worker"))
        eventually(lambda: bool(listed("train")))
    finally:
        kubelet.close()


def test_containers_are_bounded(kubelet: Kubelet, listed: Callable[..., list[Any]]) -> None:
    kubelet.use(*(("team", "train", f"pod-{number:05}", "worker") for number in range(MAX_CONTAINERS + 1)))
    eventually(lambda: len(listed("train")) == MAX_CONTAINERS)


@pytest.mark.parametrize("claim_labels", [True, False])
def test_series_of_containers_need_names_of_claims(claim_labels: bool) -> None:
    metrics = Metrics(MetricsSnapshot)
    metrics.add(
        TelemetryMetrics(
            TelemetrySnapshot,
            Inventory,
            "node-1",
            set,
            claim_labels=claim_labels,
            containers=lambda: [("team", "train", "train-0", "worker")],
        )
    )
    series = 'dra_agent_claim_container_info{claim="train",container="worker",namespace="team",pod="train-0"} 1.0'
    assert (series in metrics.render()[0].decode()) is claim_labels
