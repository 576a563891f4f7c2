"""The agent as the first process of a container: the kernel gives it processes whose parents have ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from eventually import eventually

TIMEOUT_S = 60.0
ORPHANS = 20
SCRIPT = f"""\
import os, subprocess, sys
from dra_agent.agent import agent
from dra_agent.cli.main import main

assert os.getpid() == 1

async def live(self):
    codes = set()
    for number in range({ORPHANS}):
        # The shell ends before its child, which the first process gets.
        codes.add(subprocess.run(["sh", "-c", "sleep 0.01 & exit 7"]).returncode)
    print("codes", codes, flush=True)
    await __import__("asyncio").Event().wait()

agent.Agent.run = live
sys.exit(main(["run", "--standalone", "--simulate", "vm-1gpu", "--state-dir", sys.argv[1], "--cdi-dir", sys.argv[1]]))
"""


@pytest.fixture
def first(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("only root can make a PID namespace, with unshare(1)")
    command = [unshare, "--pid", "--fork", "--kill-child", sys.executable, "-c", SCRIPT, str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def below(pid: int) -> list[tuple[int, str]]:
    """Return the processes below one, with their states."""
    found = []
    for child in children(pid):
        with suppress(OSError):
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            found += [(child, state), *below(child)]
    return found


def test_orphans_are_reaped_and_exit_statuses_of_its_own_commands_are_kept(first: subprocess.Popen[str]) -> None:
    assert first.stdout is not None and first.stdout.readline() == "codes {7}\n"
    (init,) = children(first.pid)
    eventually(lambda: len(below(init)) <= 1, lambda: f"left: {below(init)}")
    assert not [state for _, state in below(init) if state == "Z"]


def test_the_end_of_the_agent_is_that_of_the_container(first: subprocess.Popen[str]) -> None:
    assert first.stdout is not None and first.stdout.readline() == "codes {7}\n"
    (init,) = children(first.pid)
    for pid, _ in below(init):
        with suppress(ProcessLookupError):  # an orphan that has ended
            os.kill(pid, signal.SIGKILL)
    assert first.wait(TIMEOUT_S) == 128 + signal.SIGKILL
