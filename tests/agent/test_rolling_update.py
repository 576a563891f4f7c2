"""Two real agents on one host, as in an update of a DaemonSet with maxSurge: each serves the kubelet."""

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


async def next_driver(kubelet: FakeKubelet) -> Driver:
    """Wait for a driver instance that the kubelet did not know before."""
    known = set(kubelet.drivers)

    async def new_instances() -> set[Path]:
        await kubelet.reconcile()
        return set(kubelet.drivers) - known

    return kubelet.drivers[(await eventually_async(new_instances)).pop()]


def test_each_agent_continues_claims_of_the_other(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    one, two = allocate(fake_api, "one"), allocate(fake_api, "two")
    kubelet = FakeKubelet(kubelet_dir)

    async def scenario() -> None:
        old = kubernetes("--pod-uid", OLD)
        old_driver = await next_driver(kubelet)
        new = kubernetes("--pod-uid", NEW)
        new_driver = await next_driver(kubelet)
        try:
            response = await prepare(old_driver, one)
            assert not response.error
            assert await prepare(new_driver, one) == response
            assert "is held by another claim" in (await prepare(new_driver, two)).error, "as the older agent recorded"
            assert await unprepare(new_driver, one) == ""
            assert await unprepare(old_driver, one) == "" and specs(tmp_path) == []
            assert not (await prepare(new_driver, two)).error
            old.end(signal.SIGKILL)
            assert await unprepare(new_driver, two) == ""
        finally:
            await kubelet.close()
        assert new.end() == 0
        for agent in (old, new):
            assert "Traceback" not in agent.log_text()

    asyncio.run(asyncio.wait_for(scenario(), 300))


KEY = f"{DRIVER}/reclaim"


def tainted(api: FakeApi) -> bool:
    """Return whether every published device has the taint of a reclaim."""
    devices = [device for slice_ in api.objects("resourceslices") for device in slice_["spec"].get("devices", [])]
    return bool(devices) and all(any(taint["key"] == KEY for taint in device.get("taints", [])) for device in devices)


def taint_writers(api: FakeApi) -> set[str]:
    return {
        request.headers["authorization"].removeprefix("Bearer ")
        for request in api.writes()
        if "resourceslices" in request.path and KEY in json.dumps(request.body)
    }


@pytest.mark.parametrize("trigger", ["a source", "an operator"])
def test_the_old_agent_leads_while_the_new_one_is_refused(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, tmp_path: Path, state: Path, trigger: str
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
    assert "slices cannot be published" in new.get("/readyz")[1], "the update must not continue"

    if trigger == "a source":
        notice.touch()
    else:
        control.send_request(state, Begin("notice", 60.0, "a test"))
    fake_api.wait(lambda: tainted(fake_api))
    assert taint_writers(fake_api) == {"old"}

    fake_api.tokens = {"old", "new"}
    token.write_text("new")
    new.wait_for("this agent leads now")
    old.wait_for("another agent leads now")
    if trigger == "a source":
        notice.unlink()
    else:
        control.send_request(state, Cancel())
    fake_api.wait(lambda: not tainted(fake_api))
    assert taint_writers(fake_api) == {"old"}

    fake_api.tokens = {"old"}  # refused later, for example after its service account was deleted
    notice.touch()
    fake_api.wait(lambda: tainted(fake_api))
    for agent in (old, new):
        assert "Traceback" not in agent.log_text()


@pytest.mark.parametrize("labels", ["node", "nfd"])
def test_an_agent_that_leads_again_writes_its_labels(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, tmp_path: Path, labels: str
) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    features = tmp_path / "features.d"
    features.mkdir()

    def run(uid: str, rack: str) -> AgentProcess:
        place, config = tmp_path / f"{rack}-place.toml", tmp_path / f"{rack}-config.toml"
        place.write_text(f'rack = "{rack}"\n')
        lines = (f'node_labels = "{labels}"', f'nfd_features_dir = "{features}"')
        config.write_text("\n".join((*lines, "[inventory]", f'fabric_file = "{place}"', "")))
        return kubernetes("--pod-uid", uid, "--config", str(config)).ready()

    def has(rack: str) -> bool:
        if labels == "node":
            (node,) = fake_api.objects("nodes")
            return bool((node["metadata"].get("labels") or {}).get(f"fabric.{DRIVER}/rack") == rack)
        file = features / f"dra-agent-{DRIVER}"
        return file.exists() and f"fabric.{DRIVER}/rack={rack}\n" in file.read_text()

    old = run(OLD, "r1")
    fake_api.wait(lambda: has("r1"))
    new = run(NEW, "r2")
    fake_api.wait(lambda: has("r2"))
    new.end(signal.SIGKILL)
    fake_api.wait(lambda: has("r1"))
    assert "Traceback" not in old.log_text()


def test_an_agent_that_leads_again_writes_the_condition_of_a_notice(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, tmp_path: Path
) -> None:
    """The agent in between has no source of notices, and removes the condition."""
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    notice = tmp_path / "notice"
    notice.touch()

    def run(uid: str, file: str) -> AgentProcess:
        config = tmp_path / f"{uid}.toml"
        config.write_text(f'[reclaim]\n{file}cloud = "none"\nlogind = "off"\n')
        return kubernetes("--pod-uid", uid, "--config", str(config)).ready()

    def has_condition(status: str) -> bool:
        (node,) = fake_api.objects("nodes")
        conditions = (node.get("status") or {}).get("conditions") or []
        return [one["status"] for one in conditions if one["type"] == f"{DRIVER}/ReclaimNotice"] == [status]

    old = run(OLD, f'file = "{notice}"\n')
    fake_api.wait(lambda: has_condition("True"))
    new = run(NEW, "")
    fake_api.wait(lambda: has_condition("False"))
    new.end(signal.SIGKILL)
    fake_api.wait(lambda: has_condition("True") and tainted(fake_api))
    assert "Traceback" not in old.log_text()


def test_an_agent_without_sharing_excludes_others(kubernetes: Callable[..., AgentProcess], start: Start) -> None:
    sharing = kubernetes("--pod-uid", OLD).ready()
    for exclusive in (kubernetes(), start()):
        assert exclusive.process.wait(60) == 1
        assert f"another agent (pid {sharing.process.pid}) runs on this state directory" in exclusive.log_text()
    assert sharing.end() == 0
    start().ready()
    refused = kubernetes("--pod-uid", NEW)
    assert refused.process.wait(60) == 1
    assert "another agent" in refused.log_text() and "--pod-uid" in refused.log_text()
