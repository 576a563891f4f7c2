"""A call takes a thread when its request has been received, and not before."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from dra_agent.kubelet_plugin import plugin, received_request
from dra_agent.kubelet_plugin.proto import dra_v1_pb2
from eventually import DEADLINE_S, eventually_async
from kubelet_plugin.conftest import Node, Run
from kubelet_plugin.fake_kubelet import Driver

CLAIM_C = ("default", "c", "u")
METHOD = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"


def open_call(driver: Driver, requests: AsyncIterator[bytes], timeout: float = DEADLINE_S) -> Any:
    """Call the method with as many requests as the caller sends; on the wire it is a call with one request."""
    call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = driver.channel.stream_unary(METHOD)
    return call(requests, timeout=timeout)


def request(uid: str) -> bytes:
    message = dra_v1_pb2.NodeUnprepareResourcesRequest()
    message.claims.add(namespace="default", name="c", uid=uid)
    return message.SerializeToString()


def calls_of(served: plugin.KubeletPlugin) -> set[object]:
    """Return gRPC's states of calls in progress."""
    assert served._server is not None  # noqa: SLF001 - gRPC lists the calls in progress only in the state of its server
    states: set[object] = served._server._state.rpc_states  # type: ignore[attr-defined]  # noqa: SLF001 - gRPC lists the calls in progress only in the state of its server
    return states


def test_this_version_of_grpc_starts_handlers_with_a_received_request(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    submit = received_request.submit

    def record(*arguments: Any) -> Any:
        submitted.append(submit(*arguments))
        return submitted[-1]

    monkeypatch.setattr(received_request, "submit", record)

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            assert not (await driver.call("unprepare", [CLAIM_C])).claims["u"].error

    run(scenario())
    assert any(future is not None for future in submitted)


def test_calls_without_a_request_take_no_thread(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "MAX_CALLS", 1)
    send = asyncio.Event()

    async def later(uid: str) -> AsyncIterator[bytes]:
        await send.wait()
        yield request(uid)

    async def scenario() -> None:
        async with node.registered() as (served, driver):
            late = [asyncio.ensure_future(open_call(driver, later(f"late-{number}"))) for number in range(3)]
            await eventually_async(lambda: len(calls_of(served)) == len(late))
            assert not (await driver.call("unprepare", [CLAIM_C], timeout=DEADLINE_S)).claims["u"].error
            send.set()
            for number, response in enumerate(await asyncio.gather(*late)):
                claims = dra_v1_pb2.NodeUnprepareResourcesResponse.FromString(response).claims
                assert not claims[f"late-{number}"].error

    run(scenario())
    assert node.devices.calls[0] == "unprepare u"
    assert sorted(node.devices.calls[1:]) == [f"unprepare late-{number}" for number in range(3)]


def test_a_call_that_ends_without_a_request_is_refused(node: Node, run: Run) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        no_requests: tuple[bytes, ...] = ()
        for request in no_requests:
            yield request

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await open_call(driver, nothing())
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert caught.value.details() == f'"{METHOD}" requires exactly one request message.'
            assert not (await driver.call("unprepare", [CLAIM_C])).claims["u"].error

    run(scenario())


def test_a_caller_that_goes_before_its_request_leaves_nothing(node: Node, run: Run) -> None:
    never = asyncio.Event()

    async def pending() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async def scenario() -> None:
        async with node.registered() as (served, driver):
            calls = [asyncio.ensure_future(open_call(driver, pending())) for _ in range(3)]
            assert not (await driver.call("unprepare", [CLAIM_C])).claims["u"].error
            await eventually_async(lambda: len(calls_of(served)) == len(calls))
            for call in calls:
                call.cancel()
            for call in calls:
                with contextlib.suppress(asyncio.CancelledError):
                    await call
            assert not (await driver.call("unprepare", [CLAIM_C])).claims["u"].error
            await eventually_async(lambda: not calls_of(served))

    run(scenario())
    assert node.devices.calls == ["unprepare u"] * 2


def test_a_call_that_is_canceled_while_it_waits_for_a_thread_is_not_worked_on(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "MAX_CALLS", 1)
    gate = node.devices.gates["u"] = threading.Event()

    async def scenario() -> None:
        async with node.registered() as (served, driver):
            first = asyncio.ensure_future(driver.call("unprepare", [CLAIM_C]))
            await eventually_async(lambda: node.devices.calls)
            second = asyncio.ensure_future(driver.call("unprepare", [("default", "d", "v")]))
            await eventually_async(lambda: len(calls_of(served)) == 2)
            second.cancel()
            await eventually_async(lambda: len(calls_of(served)) == 1)
            gate.set()
            assert not (await first).claims["u"].error
            assert not (await driver.call("unprepare", [("default", "e", "w")])).claims["w"].error

    run(scenario())
    assert node.devices.calls == ["unprepare u", "unprepare w"]


def test_a_version_of_grpc_without_it_serves_calls(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_request, "submit", lambda *arguments: None)
    node.claims.add("c", "u")

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            assert (await driver.call("prepare", [CLAIM_C])).claims["u"].devices
            assert not (await driver.call("unprepare", [CLAIM_C])).claims["u"].error

    run(scenario())
