"""The first thread of the agent, which receives its signals, in a process for which the system has no room."""

from __future__ import annotations

import subprocess
import sys

from eventually import DEADLINE_S

INSTALLS = """
import os, resource
from dra_agent.cli.main import exit_code
from dra_agent.agent import signals

if os.geteuid() == 0:  # for whom there is no limit
    os.setgid(54321)
    os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
raise SystemExit(exit_code(lambda: signals.install() and 0))
"""


def test_the_agent_says_that_there_is_no_room_for_threads() -> None:
    command = [sys.executable, "-c", INSTALLS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("dra-agent: thread 'signals': the system has no room for another thread; raise ")
