"""Garbage on the sockets does not affect the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from pathlib import Path

import grpc
import pytest

from eventually import DEADLINE_S, eventually_async
from kubelet_plugin.conftest import Node, Run
from kubelet_plugin.fake_kubelet import Driver

GET_INFO_S = 1.0
"""The timeout of the kubelet for GetInfo."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
GARBAGE = {
    "nothing": b"",
    "random": random.Random(7).randbytes(65536),
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "preface only": PREFACE,
    "half a frame": PREFACE + SETTINGS[:4],
    "random frames": PREFACE + SETTINGS + random.Random(8).randbytes(4096),
    "huge frame": PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(1 << 20),
    "zeros": bytes(1 << 20),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
}


async def check_service(driver: Driver) -> None:
    response = await driver.call("unprepare", [("default", "c", "u")])
    assert response.claims["u"].error == ""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def send(path: Path, data: bytes, *, close: bool) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(DEADLINE_S)
    sock.connect(str(path))
    sock.settimeout(1.0)
    with contextlib.suppress(OSError):  # the peer closed the connection or stopped reading
        sock.sendall(data)
    if close:
        sock.close()
    return sock


@pytest.mark.parametrize("close", [True, False], ids=["closed", "half open"])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_on_a_socket_is_ignored(node: Node, run: Run, name: str, close: bool) -> None:
    async def scenario() -> None:
        async with node.plugin(), node.kubelet() as kubelet:
            driver = await kubelet.driver()
            for path in (driver.endpoint, *kubelet.sockets()):
                sockets = [await asyncio.to_thread(send, path, GARBAGE[name], close=close) for _ in range(5)]
                await check_service(driver)
                kubelet.seen.clear()
                await kubelet.reconcile()
                assert not kubelet.errors
                for sock in sockets:
                    sock.close()

    run(scenario())


@pytest.mark.parametrize(
    ("size", "code"),
    [
        (1, grpc.StatusCode.INVALID_ARGUMENT),
        (1000, grpc.StatusCode.INVALID_ARGUMENT),
        (5 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_malformed_messages_are_refused(
    node: Node, run: Run, size: int, code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = driver.channel.unary_unary(
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"\xff" * size)
            assert caught.value.code() == code
            await check_service(driver)

    run(scenario())
    assert not [record for record in caplog.records if record.exc_info], "a traceback for a malformed message"


def test_a_call_with_too_many_claims_is_refused(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver), node.kubelet() as kubelet:
            largest = [("default", "NO NAME", f"uid-{number}") for number in range(1000)]
            call = asyncio.ensure_future(driver.call("prepare", largest))
            longest_block = 0.0
            while not call.done():
                start = time.thread_time()  # CPU time of the event loop, without that of other threads
                await kubelet.register(next(iter(kubelet.sockets())))
                longest_block = max(longest_block, time.thread_time() - start)
                await kubelet.close()
            assert len(call.result().claims) == 1000
            assert longest_block < GET_INFO_S
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await driver.call("prepare", [("default", "c", f"uid-{number}") for number in range(1001)])
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    run(scenario())


def test_unknown_methods_are_unimplemented(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            for method in ("/k8s.io.kubelet.pkg.apis.dra.v2.DRAPlugin/NodePrepareResources", "/x/y", "/" + "z" * 4000):
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = driver.channel.unary_unary(method)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"")
                assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            await check_service(driver)

    run(scenario())


def test_hundreds_of_silent_connections_are_harmless(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            before = descriptors()
            silent = [await asyncio.to_thread(send, driver.endpoint, b"", close=False) for _ in range(300)]
            await check_service(driver)
            for sock in silent:
                sock.close()
            # Both ends of each connection are closed; gRPC keeps a few descriptors.
            await eventually_async(lambda: descriptors() < before + 50, descriptors)
            await check_service(driver)

    run(scenario())
