"""Whatever is sent to the sockets, the kubelet is served."""

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
"""What the kubelet gives GetInfo."""
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


async def works(driver: Driver) -> None:
    answer = await driver.call("unprepare", [("default", "c", "u")])
    assert answer.claims["u"].error == ""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def throw(path: Path, data: bytes, *, leave: bool) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(DEADLINE_S)
    sock.connect(str(path))
    sock.settimeout(1.0)
    with contextlib.suppress(OSError):  # hung up on, or not read any further
        sock.sendall(data)
    if leave:
        sock.close()
    return sock


@pytest.mark.parametrize("leave", [True, False], ids=["closed", "half open"])
@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_on_a_socket(node: Node, run: Run, what: str, leave: bool) -> None:
    async def scenario() -> None:
        async with node.plugin(), node.kubelet() as kubelet:
            driver = await kubelet.driver()
            for path in (driver.endpoint, *kubelet.sockets()):
                thrown = [await asyncio.to_thread(throw, path, GARBAGE[what], leave=leave) for _ in range(5)]
                await works(driver)
                kubelet.seen.clear()
                await kubelet.look()
                assert not kubelet.told
                for sock in thrown:
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
def test_messages_that_are_none(
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
            await works(driver)

    run(scenario())
    assert not [record for record in caplog.records if record.exc_info], "a traceback for what somebody else sent"


def test_calls_of_very_many_claims(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver), node.kubelet() as kubelet:
            largest = [("default", "NO NAME", f"uid-{number}") for number in range(1000)]
            call = asyncio.ensure_future(driver.call("prepare", largest))
            held_up = 0.0
            while not call.done():
                began = time.thread_time()  # of the event loop: what else the machine does is not in it
                await kubelet.register(next(iter(kubelet.sockets())))
                held_up = max(held_up, time.thread_time() - began)
                await kubelet.close()
            assert len(call.result().claims) == 1000
            assert held_up < GET_INFO_S
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await driver.call("prepare", [("default", "c", f"uid-{number}") for number in range(1001)])
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    run(scenario())


def test_methods_that_nobody_knows(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            for method in ("/k8s.io.kubelet.pkg.apis.dra.v2.DRAPlugin/NodePrepareResources", "/x/y", "/" + "z" * 4000):
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = driver.channel.unary_unary(method)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"")
                assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            await works(driver)

    run(scenario())


def test_hundreds_of_connections_that_say_nothing(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            before = descriptors()
            silent = [await asyncio.to_thread(throw, driver.endpoint, b"", leave=False) for _ in range(300)]
            await works(driver)
            for sock in silent:
                sock.close()
            # Both ends of each; gRPC keeps a few of its own.
            await eventually_async(lambda: descriptors() < before + 50, descriptors)
            await works(driver)

    run(scenario())
