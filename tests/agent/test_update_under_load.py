"""Two instances of the agent on one node and one state directory, as in an update of a DaemonSet with maxSurge."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from agent.conftest import AgentProcess
from agent.test_kubernetes_mode import GPU, allocate, kubernetes, prepare, specs, unprepare
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from kubelet_plugin.fake_kubelet import Driver, FakeKubelet

__all__ = ["kubernetes"]

NIC = "nic-0000-00-05-0"


async def wait_for_both(kubelet: FakeKubelet) -> tuple[Driver, Driver]:
    async def registered() -> bool:
        await kubelet.reconcile()
        return len(kubelet.drivers) >= 2

    await eventually_async(registered)
    by_name = {path.name: driver for path, driver in kubelet.drivers.items()}
    return by_name["dra-agent.internal-old-reg.sock"], by_name["dra-agent.internal-new-reg.sock"]


def test_a_claim_prepared_by_one_agent_is_known_to_the_other(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    kubernetes("--pod-uid", "old").ready()
    kubernetes("--pod-uid", "new").ready()

    async def scenario() -> None:
        kubelet = FakeKubelet(kubelet_dir)
        old, new = await wait_for_both(kubelet)
        claim, rival = allocate(fake_api, "one"), allocate(fake_api, "two")
        response = await prepare(old, claim)
        assert [device.device_name for device in response.devices] == [GPU]
        assert await prepare(new, claim) == response
        assert "is held by another claim" in (await prepare(new, rival)).error, "it never has two holders"
        assert await unprepare(new, claim) == ""
        assert specs(tmp_path) == []
        assert not (await prepare(old, rival)).error
        assert "is held by another claim" in (await prepare(new, claim)).error
        await kubelet.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_the_old_agent_stops_under_load(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path, number: int
) -> None:
    old = kubernetes("--pod-uid", "old").ready()
    numbers = itertools.count()
    pods_completed = {GPU: 0, NIC: 0}

    async def scenario() -> None:
        kubelet = FakeKubelet(kubelet_dir)
        first = await kubelet.driver()
        current = first
        stopping = asyncio.Event()

        async def calls(method: str, claim: tuple[str, str, str]) -> str:
            """Call as the kubelet does: after an instance has gone, the call is repeated on the other one."""
            while True:
                called = current
                try:
                    response = (await called.call(method, [claim])).claims[claim[2]]
                except grpc.aio.AioRpcError as error:
                    gone = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
                    assert gone and called is first, f"{method} failed: {error.details()}"
                    await asyncio.sleep(0.02)
                else:
                    return str(response.error)

        async def pods(device: str) -> None:
            while not stopping.is_set():
                claim = allocate(fake_api, f"{device}-{next(numbers)}", device)
                assert await calls("prepare", claim) == ""
                assert await calls("unprepare", claim) == ""
                pods_completed[device] += 1

        async def progress() -> None:
            """Wait until a pod of each device has started and ended."""
            before = dict(pods_completed)
            await eventually_async(
                lambda: load.done() or all(pods_completed[device] > before[device] for device in pods_completed)
            )
            assert not load.done(), load

        load = asyncio.gather(pods(GPU), pods(NIC))
        await progress()
        new = kubernetes("--pod-uid", "new")
        _, current = await wait_for_both(kubelet)
        await asyncio.to_thread(new.ready)
        await progress()
        exit_code = await asyncio.to_thread(old.end, number)
        assert exit_code == (0 if number == signal.SIGTERM else -9)
        await progress()
        stopping.set()
        await load
        sockets = {path.name for path in kubelet_dir.rglob("*.sock")}
        if number == signal.SIGTERM:
            assert sockets == {"dra-new.sock", "dra-agent.internal-new-reg.sock", "hooks.sock"}
        assert specs(tmp_path) == []
        await kubelet.close()

    asyncio.run(scenario())
    assert "Traceback" not in old.log_text()
