"""Bytes on the plugin's socket: after any input, the next call of the kubelet gets a response."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import grpc

from dra_agent.kubelet_plugin.plugin import KubeletPlugin
from dra_agent.kubelet_plugin.proto import dra_v1_pb2
from dra_agent.kubelet_plugin.sockets import socket_paths
from fuzz.inputs.grpc_message import Claims, Devices

DRIVER = "d.example.com"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
RESPONSE_TIMEOUT_S = 60.0
_METHOD = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"


class _Server:
    """A plugin in a separate thread, and one connection of a kubelet to it."""

    def __init__(self) -> None:
        self.paths = socket_paths(Path(tempfile.mkdtemp(prefix="dra-fuzz-")), DRIVER, "")
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True).start()
        assert ready.wait(RESPONSE_TIMEOUT_S), "the plugin does not start"
        channel = grpc.insecure_channel(f"unix:{self.endpoint}")
        self.call: Any = channel.unary_unary(_METHOD)

    async def _serve(self, ready: threading.Event) -> None:
        plugin = KubeletPlugin(self.paths, DRIVER, Claims())
        await plugin.open()
        plugin.serve(Devices(), None)
        self.endpoint = str(self.paths.service)
        ready.set()
        await asyncio.Event().wait()


_servers: list[_Server] = []


def check(data: bytes) -> None:
    """Send bytes, with an HTTP/2 preface if the first byte is odd, and call as a kubelet does."""
    if not _servers:
        _servers.append(_Server())
    server = _servers[0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(RESPONSE_TIMEOUT_S)
        sock.connect(server.endpoint)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server may close at any byte
            sock.sendall((PREFACE if data[:1] and data[0] & 1 else b"") + data[1:])
            sock.shutdown(socket.SHUT_WR)
    claim = dra_v1_pb2.Claim(namespace="default", name="c", uid="c")
    request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[claim])
    response = dra_v1_pb2.NodeUnprepareResourcesResponse.FromString(
        server.call(request.SerializeToString(), timeout=RESPONSE_TIMEOUT_S)
    )
    assert response.claims["c"].error == ""
