"""Agents whose state directory the kernel has remounted read-only (errors=remount-ro)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import dra_simulate
from agent.conftest import AgentProcess
from agent.test_kubernetes_mode import allocate, prepare, registered, unprepare
from eventually import eventually
from fake_apiserver.fake import FakeApi

GPUS = ("gpu-0000-0c-00-0", "gpu-0000-15-00-0")


@dataclass
class Agents:
    """Agents with a state directory that is a separate mount, which the test makes writable later."""

    tmp_path: Path
    flags: list[str]
    running: list[AgentProcess] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.tmp_path / "s"

    def start(self, *, read_only: bool) -> AgentProcess:
        command = [sys.executable, "-m", "dra_agent", "run", "--state-dir", str(self.state), *self.flags]
        self.state.mkdir(exist_ok=True)
        mode = "ro" if read_only else "rw"
        script = (
            f'mount --bind "{self.state}" "{self.state}" && mount -o remount,bind,{mode} "{self.state}" && exec "$@"'
        )
        log = self.tmp_path / f"log-{len(self.running)}"
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        with log.open("w") as file:
            process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script, "sh", *command],
                stdout=file,
                stderr=file,
                text=True,
                env=variables,
            )
        self.running.append(AgentProcess(process, log))
        return self.running[-1]

    def make_writable(self, agent: AgentProcess) -> None:
        command = ["nsenter", "-t", str(agent.process.pid), "-m", "mount", "-o", "remount,bind,rw", str(self.state)]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system read-only")
    if subprocess.run(["unshare", "-m", "mount", "--bind", tmp_path, tmp_path], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    host = dra_simulate.build("mi300x", tmp_path / "host")
    agents_ = Agents(tmp_path, ["--sysfs-root", str(host.sysfs), "--dev-root", str(host.dev), "--node-name", "node-a"])
    agents_.flags += ["--cdi-dir", str(tmp_path / "cdi"), "--run-dir", str(tmp_path / "run")]
    agents_.flags += ["--metrics-address", "127.0.0.1:0"]
    yield agents_
    for agent in agents_.running:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.wait(60)


def test_with_read_only_state_prepared_claims_are_still_served(
    agents: Agents, fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    agents.flags += ["--no-standalone", "--kubelet-dir", str(kubelet_dir)]
    agents.flags += ["--kubeconfig", str(fake_api.kubeconfig(tmp_path / "kubeconfig"))]
    fake_api.put("nodes", {"metadata": {"name": "node-a", "uid": "u-a"}})
    first_claim, second_claim = (
        allocate(fake_api, name, device) for name, device in zip(("one", "two"), GPUS, strict=True)
    )
    first = agents.start(read_only=False).ready()

    async def prepare_first() -> object:
        async with registered(kubelet_dir) as driver:
            response = await prepare(driver, first_claim)
            assert not response.error
            return response

    prepared = asyncio.run(prepare_first())
    assert first.end() == 0
    second = agents.start(read_only=True)

    async def check_second_agent() -> None:
        async with registered(kubelet_dir) as driver:
            assert await prepare(driver, first_claim) == prepared, "a prepared claim is returned"
            for refused in ((await prepare(driver, second_claim)).error, await unprepare(driver, first_claim)):
                assert "Read-only file system" in refused and str(agents.state) in refused, refused
            await asyncio.to_thread(second.ready)  # claims are served before the agent logs that it is ready
            status, reason = second.get("/readyz")
            assert status == 503 and "Read-only file system" in reason, reason
            assert second.get("/healthz")[0] == 200, "a restart would not make it writable"
            agents.make_writable(second)
            assert not (await prepare(driver, second_claim)).error
            assert await unprepare(driver, first_claim) == ""
            eventually(lambda: second.get("/readyz")[0] == 200, lambda: f"not ready: {second.get('/readyz')}")

    asyncio.run(check_second_agent())
    assert second.end() == 0
    log = second.log_text()
    assert "nothing can be recorded" in log and "the ledger was damaged" not in log
    assert "Traceback" not in log


def test_a_standalone_agent_does_not_start_with_read_only_state(agents: Agents) -> None:
    agents.flags.append("--standalone")
    first = agents.start(read_only=False).ready()
    assert first.end() == 0
    second = agents.start(read_only=True)
    assert second.process.wait(120) == 1
    *_, last = second.log_text().splitlines()
    assert last.startswith(f"dra-agent: {agents.state}/objects.db: cannot be written: "), second.log_text()
    assert "Read-only file system" in last and "state directory" in last
    assert "Traceback" not in second.log_text()
