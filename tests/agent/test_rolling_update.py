"""Two real agents on one host, as while a DaemonSet is updated with maxSurge: each takes what the kubelet sends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from agent.conftest import AgentProcess, Start
from agent.test_kubernetes import allocate, kubernetes, prepare, specs, unprepare
from cluster_api.fake import FakeApi
from plugin.fake_kubelet import Driver, FakeKubelet

__all__ = ["kubernetes"]

OLD, NEW = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"


async def another(kubelet: FakeKubelet) -> Driver:
    """The instance that the kubelet did not know yet."""
    known = set(kubelet.drivers)
    while not (new := set(kubelet.drivers) - known):
        await kubelet.look()
        await asyncio.sleep(0.02)
    return kubelet.drivers[new.pop()]


def test_each_takes_over_the_claims_of_the_other(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    one, two = allocate(fake_api, "one"), allocate(fake_api, "two")
    kubelet = FakeKubelet(kubelet_dir)

    async def scenario() -> None:
        old = kubernetes("--pod-uid", OLD)
        to_old = await another(kubelet)
        new = kubernetes("--pod-uid", NEW)
        to_new = await another(kubelet)
        try:
            answer = await prepare(to_old, one)
            assert not answer.error
            assert await prepare(to_new, one) == answer
            assert "one" in (await prepare(to_new, two)).error, "held, as the old one knows"
            assert await unprepare(to_new, one) == ""
            assert await unprepare(to_old, one) == "" and specs(tmp_path) == []
            assert not (await prepare(to_new, two)).error
            old.end(signal.SIGKILL)
            assert await unprepare(to_new, two) == ""
        finally:
            await kubelet.close()
        assert new.end() == 0
        for agent in (old, new):
            assert "Traceback" not in agent.said()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_agent_that_does_not_share_keeps_others_out(kubernetes: Callable[..., AgentProcess], start: Start) -> None:
    sharing = kubernetes("--pod-uid", OLD).ready()
    for lonely in (kubernetes(), start()):
        assert lonely.process.wait(30) == 1
        assert f"another agent (pid {sharing.process.pid}) runs on this state directory" in lonely.said()
    assert sharing.end() == 0
    start().ready()
    refused = kubernetes("--pod-uid", NEW)
    assert refused.process.wait(30) == 1
    assert "another agent" in refused.said() and "--pod-uid" in refused.said()
