"""Processes are found by a variable that they were started with."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dra_agent.processes import environment
from dra_agent.processes.environment import processes_with
from eventually import eventually

VARIABLE = f"DRA_AGENT_TEST_{os.getpid()}"


def test_a_process_is_found_by_the_whole_variable_until_it_has_ended(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'ready')!r}, 'w').close(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, VARIABLE: "one"}, stdin=subprocess.PIPE
    ) as process:
        eventually((tmp_path / "ready").exists)
        assert processes_with(f"{VARIABLE}=one") == [process.pid]
        assert processes_with(f"{VARIABLE}=on") == processes_with(VARIABLE) == []
        process.kill()
        process.wait()
        assert processes_with(f"{VARIABLE}=one") == []


def test_an_environment_that_is_not_read_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    def hang(pid: int) -> bytes:
        end.wait()
        return b""

    monkeypatch.setattr(environment, "_environment", hang)
    monkeypatch.setattr(environment, "process_ids", lambda: [7])
    monkeypatch.setattr(environment, "SEARCH_TIMEOUT_S", 0.01)
    try:
        with pytest.raises(TimeoutError, match="the environment of process [07] is not readable"):
            processes_with("A=b")
    finally:
        end.set()
