"""The containers that use claims, as the kubelet lists them: its PodResources API (KEP-3695), on a thread.

The agent itself learns the pods of a claim, and no containers. The list has the claims of every driver.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from dra_agent.kubelet_plugin.proto import podresources_v1_pb2 as messages
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

SOCKET = "pod-resources/kubelet.sock"
"""Below the directory of the kubelet."""
METHOD = f"/{messages.DESCRIPTOR.services_by_name['PodResourcesLister'].full_name}/List"
CALL_TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = 16 << 20
"""Of one response; the resources of a container take some hundred bytes."""
MAX_RECONNECT_MS = 5000
"""Between two attempts to connect; gRPC's default is two minutes."""
MAX_CONTAINERS = 1024
"""Containers of all claims of this node that are reported, the first in the order of their names."""

ContainerOfClaim = tuple[str, str, str, str]
"""Namespace, claim, pod and container."""


class ClaimContainers:
    """Lists the containers at an interval, from `start` to `stop`. `of` never waits."""

    def __init__(self, kubelet_dir: Path, interval_s: float) -> None:
        self._socket = kubelet_dir / SOCKET
        self._interval_s = interval_s
        self._found: frozenset[ContainerOfClaim] = frozenset()
        self._logged = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = supervisor().thread_loop("pod-resources", self._run, self._stopping)

    def stop(self) -> None:
        """End it; a call that hangs is waited for until its timeout."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2 * CALL_TIMEOUT_S)

    def of(self, claims: Collection[tuple[str, str]]) -> list[ContainerOfClaim]:
        """Return the containers of these claims by namespace and name; none while the kubelet does not respond."""
        return sorted(one for one in self._found if one[:2] in claims)[:MAX_CONTAINERS]

    def _run(self) -> None:
        # One channel: it reconnects when the kubelet is restarted.
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
            ("grpc.enable_http_proxy", 0),
        ]
        with grpc.insecure_channel(f"unix://{self._socket}", options=options) as channel:
            call: grpc.UnaryUnaryMultiCallable[messages.ListPodResourcesRequest, bytes] = channel.unary_unary(
                METHOD,
                request_serializer=messages.ListPodResourcesRequest.SerializeToString,
                response_deserializer=bytes,
            )
            while not self._stopping.is_set():
                try:
                    response = call(messages.ListPodResourcesRequest(), timeout=CALL_TIMEOUT_S)
                    self._found, self._logged = _containers(response), ""
                except (grpc.RpcError, DecodeError) as error:
                    self._found = frozenset()
                    self._report(error)
                self._stopping.wait(self._interval_s)

    def _report(self, error: grpc.RpcError | DecodeError) -> None:
        reason = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
        if reason != self._logged and not self._stopping.is_set():
            log.warning(
                "containers of claims are not known",
                extra={"reason": reason, "socket": str(self._socket), "key": "claim_containers"},
            )
        self._logged = reason


def _containers(response: bytes) -> frozenset[ContainerOfClaim]:
    """Return the containers of a response; raises DecodeError if it is not one."""
    found = messages.ListPodResourcesResponse.FromString(response)
    return frozenset(
        (resource.claim_namespace, resource.claim_name, pod.name, container.name)
        for pod in found.pod_resources
        for container in pod.containers
        for resource in container.dynamic_resources
    )
