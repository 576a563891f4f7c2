"""A short soak with restarts, which finds leftovers. The long soak, `make soak`, finds slow growth."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from eventually import eventually
from soak.soak import Soak, soak


def test_no_leftovers_after_many_claims_and_restarts(short_path: Path) -> None:
    async def run() -> Soak:
        machine = Soak(short_path, seed=1)
        try:
            await soak(machine, pairs=400, warm_up=200, quiet_s=0.0, restarts=2, until=lambda: False)
        finally:
            await machine.close()
        return machine

    machine = asyncio.run(run())
    assert machine.starts == 3
    assert sum(machine.disturbed.values()) >= 1, "no disturbance happened"


def test_sigterm_ends_the_agent_too_and_removes_its_files(short_path: Path) -> None:
    tests = Path(__file__).parents[1]
    environment = os.environ | {"TMPDIR": os.fspath(short_path), "PYTHONPATH": os.fspath(tests)}
    command = [sys.executable, "-m", "soak.soak"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as campaign:
        try:
            agents = eventually(lambda: psutil.Process(campaign.pid).children(), "the soak starts no agent")
        finally:
            campaign.terminate()
        assert campaign.stderr is not None
        assert campaign.stderr.read() == "ended by SIGTERM, without a result\n"
    assert campaign.returncode == 128 + signal.SIGTERM
    assert not [agent for agent in agents if agent.is_running()]
    assert not list(short_path.iterdir())
