"""Two real agents on one host, as while a DaemonSet is updated with maxSurge: each takes what the kubelet sends it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.conftest import AgentProcess, Start
from agent.test_kubernetes_mode import DRIVER, allocate, kubernetes, prepare, specs, unprepare
from dra_agent.reclaim import control
from dra_agent.reclaim.control import Cancel
from dra_agent.reclaim.control import Start as Begin
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from kubelet_plugin.fake_kubelet import Driver, FakeKubelet

__all__ = ["kubernetes"]

OLD, NEW = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"


async def another(kubelet: FakeKubelet) -> Driver:
    """The instance that the kubelet did not know yet."""
    known = set(kubelet.drivers)

    async def new() -> set[Path]:
        await kubelet.look()
        return set(kubelet.drivers) - known

    return kubelet.drivers[(await eventually_async(new)).pop()]


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

    asyncio.run(asyncio.wait_for(scenario(), 300))


KEY = f"{DRIVER}/reclaim"


def tainted(api: FakeApi) -> bool:
    """Whether every published device has the taint of a notice."""
    devices = [device for one in api.objects("resourceslices") for device in one["spec"].get("devices", [])]
    return bool(devices) and all(any(t["key"] == KEY for t in device.get("taints", [])) for device in devices)


def taint_writers(api: FakeApi) -> set[str]:
    return {
        seen.headers["authorization"].removeprefix("Bearer ")
        for seen in api.writes()
        if "resourceslices" in seen.path and KEY in json.dumps(seen.body)
    }


@pytest.mark.parametrize("who", ["a source", "an operator"])
def test_a_new_agent_that_is_refused_leaves_the_old_one_in_the_lead(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, tmp_path: Path, state: Path, who: str
) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    fake_api.tokens = {"old"}
    notice, token = tmp_path / "notice", tmp_path / "token"
    token.write_text("refused")
    config = tmp_path / "config.toml"
    config.write_text(f'[reclaim]\nfile = "{notice}"\ncloud = "none"\nlogind = "off"\n')
    credentials = {"old": {"token": "old"}, "new": {"tokenFile": str(token)}}
    files = {name: fake_api.kubeconfig(tmp_path / name, **user) for name, user in credentials.items()}
    old = kubernetes("--pod-uid", OLD, "--config", str(config), "--kubeconfig", str(files["old"])).ready()
    fake_api.wait(lambda: bool(fake_api.objects("resourceslices")))
    new = kubernetes("--pod-uid", NEW, "--config", str(config), "--kubeconfig", str(files["new"])).ready()
    new.wait_for("slices cannot be followed")
    assert "slices cannot be published" in new.get("/readyz")[1], "the update must not go on"

    if who == "a source":
        notice.touch()
    else:
        control.send_request(state, Begin("notice", 60.0, "a test"))
    fake_api.wait(lambda: tainted(fake_api))
    assert taint_writers(fake_api) == {"old"}

    fake_api.tokens = {"old", "new"}
    token.write_text("new")
    new.wait_for("this agent leads now")
    old.wait_for("another agent leads now")
    if who == "a source":
        notice.unlink()
    else:
        control.send_request(state, Cancel())
    fake_api.wait(lambda: not tainted(fake_api))
    assert taint_writers(fake_api) == {"old"}

    fake_api.tokens = {"old"}  # refused later, as where its account was deleted
    notice.touch()
    fake_api.wait(lambda: tainted(fake_api))
    for agent in (old, new):
        assert "Traceback" not in agent.said()


def test_an_agent_that_does_not_share_keeps_others_out(kubernetes: Callable[..., AgentProcess], start: Start) -> None:
    sharing = kubernetes("--pod-uid", OLD).ready()
    for lonely in (kubernetes(), start()):
        assert lonely.process.wait(60) == 1
        assert f"another agent (pid {sharing.process.pid}) runs on this state directory" in lonely.said()
    assert sharing.end() == 0
    start().ready()
    refused = kubernetes("--pod-uid", NEW)
    assert refused.process.wait(60) == 1
    assert "another agent" in refused.said() and "--pod-uid" in refused.said()
