"""Node objects without kubelets, as autoscalers with simulated nodes create them."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from .api import NODES, SLICES, Api, ApiStatusError

HEARTBEAT_S = 5.0


@contextmanager
def reported_as_ready(api: Api, *nodes: str, since_s: float = 0) -> Iterator[None]:
    """Report nodes as ready, repeatedly, during the block; `since_s` is the age of that state in seconds."""
    ended = threading.Event()

    def report() -> None:
        while not ended.is_set():
            for node in nodes:
                with suppress(OSError, ApiStatusError):
                    api.patch(NODES, node, {"status": {"conditions": [_ready(since_s)]}}, subresource="status")
            ended.wait(HEARTBEAT_S)

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def remove_slices(api: Api, nodes: Container[str]) -> None:
    """Delete the slices of nodes, which no kubelet removes."""
    for found in api.list(SLICES):
        if found["spec"].get("nodeName") in nodes:
            api.delete(SLICES, found["metadata"]["name"])


def _ready(since_s: float) -> dict[str, str]:
    now = datetime.now(UTC)
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "simulated",
        "lastHeartbeatTime": _format(now),
        "lastTransitionTime": _format(now - timedelta(seconds=since_s)),
    }


def _format(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
