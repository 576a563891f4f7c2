"""A proxy between a kubelet and an agent at registration that can fail calls.

The agent listens below a separate directory; the kubelet finds a socket of this process instead, which forwards GetInfo
and NotifyRegistrationStatus. The endpoint in the response is unchanged, so claims go to the agent directly.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc

SERVICE = "pluginregistration.Registration"


@dataclass
class RegistrationProxy:
    """How often each call was received, and how many of the next ones fail."""

    calls: Counter[str] = field(default_factory=Counter)
    failing: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fails(self, call: str) -> bool:
        """Count a call; return whether it fails."""
        with self.lock:
            self.calls[call] += 1
            if self.failing[call] == 0:
                return False
            self.failing[call] -= 1
            return True


@contextlib.contextmanager
def proxy_registration(kubelet_dir: Path, agent_dir: Path, driver: str, **failing: int) -> Iterator[RegistrationProxy]:
    """Register the driver that listens below `agent_dir` with the kubelet of `kubelet_dir`.

    `failing` is the number of first calls that fail: `GetInfo=2`, `NotifyRegistrationStatus=1`.
    """
    import grpc

    state = RegistrationProxy(failing=Counter(failing))
    name = f"{driver}-reg.sock"
    channel = grpc.insecure_channel(f"unix:{agent_dir / 'plugins_registry' / name}")

    def forward(call: str) -> grpc.RpcMethodHandler[bytes, bytes]:
        target: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{call}")

        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            if state.fails(call):
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{call} fails this time")
            try:
                response: bytes = target(request, timeout=5)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details() or "")
            return response

        return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(ThreadPoolExecutor(4))
    methods = {call: forward(call) for call in ("GetInfo", "NotifyRegistrationStatus")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    socket = kubelet_dir / "plugins_registry" / name
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield state
    finally:
        server.stop(0).wait()
        channel.close()
        socket.unlink(missing_ok=True)
