"""A notice while the system has no room for a thread or a descriptor: it is acted on, and so is the next one."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import pytest

from agent.conftest import AgentProcess, Start
from agent.test_reclaim import KEY
from eventually import DEADLINE_S, eventually
from fake_apiserver.fake import FakeApi

NO_THREADS = """
import os, threading
start = threading.Thread.start
def refuse(thread):
    if os.path.exists({path!r}):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = refuse
"""


@pytest.fixture
def notice(tmp_path: Path) -> Path:
    return tmp_path / "notice"


@pytest.fixture
def agent(
    start: Start, fake_api: FakeApi, tmp_path: Path, short_path: Path, notice: Path
) -> Callable[..., AgentProcess]:
    """Start an agent in Kubernetes mode, and wait until its devices are published."""
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    config = tmp_path / "config.toml"
    config.write_text(f'[reclaim]\ncloud = "none"\nlogind = "off"\nfile = "{notice}"\n')
    flags = ["--kubelet-dir", str(short_path / "k"), "--kubeconfig", str(fake_api.kubeconfig(tmp_path / "kubeconfig"))]

    def run(**options: object) -> AgentProcess:
        words = ("--no-standalone", "--config", str(config), *flags, "--metrics-address", "127.0.0.1:0")
        started = start(*words, **options).ready()
        eventually(lambda: effects(fake_api) == {""}, started.log_text)
        return started

    return run


def effects(api: FakeApi) -> set[str]:
    """Return the effects of the reclaim taint of all published devices; "" for one without."""
    devices = [device for one in api.objects("resourceslices") for device in one["spec"]["devices"]]
    return {
        next((taint["effect"] for taint in device.get("taints", []) if taint["key"] == KEY), "") for device in devices
    }


def assert_acts_on_notices(agent: AgentProcess, api: FakeApi, notice: Path) -> None:
    """Withdraw the first notice, and give a second one."""
    eventually(lambda: effects(api) == {"NoExecute"}, agent.log_text)
    notice.unlink()
    eventually(lambda: effects(api) == {""}, agent.log_text)
    notice.touch()
    eventually(lambda: effects(api) == {"NoExecute"}, agent.log_text)
    assert agent.get("/healthz")[0] == HTTPStatus.OK


def test_a_notice_without_room_for_threads_taints_at_once(
    agent: Callable[..., AgentProcess], fake_api: FakeApi, notice: Path, tmp_path: Path
) -> None:
    shortage = tmp_path / "shortage"
    started = agent(patch=NO_THREADS.format(path=str(shortage)))
    shortage.touch()
    notice.touch()
    eventually(lambda: effects(fake_api) == {"NoExecute"}, started.log_text)
    assert started.get("/healthz")[0] == HTTPStatus.OK, "it responds without a new thread"
    shortage.unlink()
    assert_acts_on_notices(started, fake_api, notice)


def test_a_notice_without_descriptors_taints_afterwards(
    agent: Callable[..., AgentProcess], fake_api: FakeApi, notice: Path, state: Path
) -> None:
    started = agent(new_interpreter=True)
    pid = started.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    port = int(started.wait_for(r"port=(\d+)\s")[1])
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    notice.touch()
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S), socket.socket(socket.AF_UNIX) as operator:
        operator.connect(os.fspath(state / "reclaim.sock"))
        started.wait_for("connections wait until the system has room")
        started.wait_for("socket.accept")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert_acts_on_notices(started, fake_api, notice)
    refused = [line for line in started.log_text().splitlines() if "accept" in line or "connections wait" in line]
    assert len(refused) < 10, "repetitions are counted, and not logged each time"


FAILS = """
import os
from dra_agent import supervisor
from dra_agent.reclaim import service
supervisor.supervisor().first_retry_s = 0.01
supervisor.WELL_AFTER_S = 0.1
expire = service.expire
def fail(state, now):
    if os.path.exists({path!r}):
        raise OSError(24, "Too many open files")
    return expire(state, now)
service.expire = fail
"""


def test_a_loop_that_keeps_failing_is_reported_until_it_recovers(
    agent: Callable[..., AgentProcess], fake_api: FakeApi, notice: Path, tmp_path: Path
) -> None:
    failing = tmp_path / "failing"
    started = agent(patch=FAILS.format(path=str(failing)))
    assert 'dra_agent_loop_failures_total{loop="reclaim"} 0.0' in started.get("/metrics")[1]
    failing.touch()
    notice.touch()
    eventually(lambda: started.get("/healthz")[0] == HTTPStatus.SERVICE_UNAVAILABLE, started.log_text)
    assert "the loop 'reclaim' failed" in started.get("/healthz")[1]
    assert 'dra_agent_loop_failures_total{loop="reclaim"} 0.0' not in started.get("/metrics")[1]
    failing.unlink()
    eventually(lambda: started.get("/healthz")[0] == HTTPStatus.OK, started.log_text)
    assert_acts_on_notices(started, fake_api, notice)
