"""Stop signals end an agent at any moment of its start, and other signals do not end it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.conftest import Start

TIMEOUT_S = 60.0
AGENT_SCRIPT = """\
import ctypes, signal, sys, threading, time
from pathlib import Path
from dra_agent.agent import agent, config, signals
from dra_agent.cli.main import main

def block(*args, **kwargs):
    # As in a system call that was entered just after the signal: another thread takes it, and this one is not woken.
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    print("blocked", flush=True)
    # It keeps the interpreter's lock, too: no bytecode runs.
    ctypes.PyDLL(None).sleep(600)

def hang(*args, **kwargs):
    print("blocked", flush=True)
    threading.Event().wait()

{patch}
sys.exit(main(["run", "--standalone", "--simulate", "vm-1gpu", "--state-dir", sys.argv[1], "--cdi-dir", sys.argv[1]]))
"""
BEFORE_THE_LOOP = "config.load = block"
IN_THE_LOOP = "signals.START_STOP_S = 0.5; agent.StateLock = block"
ON_A_THREAD = "signals.START_STOP_S = 600; agent.DeviceState = hang"

Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start an agent with a patch, and return it once it blocks; it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(patch: str, *prefix: str) -> subprocess.Popen[str]:
        command = [*prefix, sys.executable, "-c", AGENT_SCRIPT.format(patch=patch), str(tmp_path / "s")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "blocked\n"
        return process

    yield run
    for process in started:
        with process:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_an_agent_before_its_event_loop(run: Run, number: signal.Signals) -> None:
    agent = run(BEFORE_THE_LOOP)
    agent.send_signal(number)
    assert agent.communicate(timeout=TIMEOUT_S) == ("", "")
    assert agent.returncode == 0


def test_a_stop_signal_ends_an_agent_with_a_blocked_event_loop(run: Run) -> None:
    agent = run(IN_THE_LOOP)
    agent.send_signal(signal.SIGTERM)
    _, error_output = agent.communicate(timeout=TIMEOUT_S)
    assert agent.returncode == 0
    assert error_output == "dra-agent: not stopped within 0.5 s of SIGTERM: the process ends without cleaning up\n"


def test_a_stop_signal_ends_a_start_that_waits_for_hardware(run: Run) -> None:
    agent = run(ON_A_THREAD)
    agent.send_signal(signal.SIGTERM)
    _, error_output = agent.communicate(timeout=TIMEOUT_S)
    assert agent.returncode == 0
    assert "stopped during the start" in error_output and "info stopped\n" in error_output
    assert "Traceback" not in error_output


@pytest.mark.parametrize("patch", [BEFORE_THE_LOOP, IN_THE_LOOP, ON_A_THREAD])
def test_the_first_process_of_a_container_stops_too(run: Run, patch: str) -> None:
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("only root can make a PID namespace, with unshare(1)")
    outside = run(f"import os; assert os.getpid() == 1; {patch}", unshare, "--pid", "--fork", "--kill-child")
    (inside,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    os.kill(int(inside), signal.SIGTERM)
    outside.communicate(timeout=TIMEOUT_S)
    assert outside.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_are_ignored_and_logged(start: Start, number: signal.Signals) -> None:
    agent = start().ready()
    agent.process.send_signal(number)
    agent.wait_for(f"warning signal ignored signal={number.name}")
    assert agent.end() == 0


def test_sighup_applies_the_log_level_and_names_other_changes(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")
    agent = start("--config", str(file)).ready()
    file.write_text('log_level = "debug"\nsecond_manager = "publish"\n[health]\nrecovery_seconds = 7.0\n')
    agent.process.send_signal(signal.SIGHUP)
    agent.wait_for("info configuration reloaded applied=log_level,health.recovery_seconds\n")
    agent.wait_for("warning settings changed that need a restart of the agent settings=second_manager\n")
    file.write_text('log_level = "error"\nlog_format = "json"\nsecond_manager = "refuse"\n')
    agent.process.send_signal(signal.SIGHUP)
    agent.wait_for('"configuration reloaded", "applied": ."log_level", "log_format", "health.recovery_seconds"')
    assert agent.end() == 0
    assert "stopping" not in agent.log_text(), "the log level is error by then"


def test_sighup_during_the_start_reloads_the_configuration(run: Run) -> None:
    agent = run(ON_A_THREAD)
    agent.send_signal(signal.SIGHUP)
    assert agent.stderr is not None
    while "configuration reloaded" not in (line := agent.stderr.readline()):
        assert line, "the agent ended"
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=TIMEOUT_S)
    assert agent.returncode == 0


def test_sighup_with_an_invalid_file_keeps_the_configuration(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")
    agent = start("--config", str(file), "--node-name", "node-b").ready()
    for text, reason in (("log_level = 7\n", r":1: log_level"), ("[", "not TOML"), (None, "No such file")):
        file.unlink() if text is None else file.write_text(text)
        agent.process.send_signal(signal.SIGHUP)
        agent.wait_for(f"error configuration not reloaded, the current one stays reason=.*{reason}")
    file.write_text('log_level = "debug"\n')
    agent.process.send_signal(signal.SIGHUP)
    agent.wait_for("info configuration reloaded applied=log_level")
    assert agent.end() == 0
    assert "Traceback" not in agent.log_text()


def test_a_closed_log_pipe_does_not_end_the_agent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dra_agent", "run", "--standalone", "--simulate", "vm-1gpu"]
    command += ["--state-dir", str(tmp_path / "s"), "--cdi-dir", str(tmp_path / "cdi"), "--log-level", "debug"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=buffered) as agent:
        try:
            assert agent.stderr is not None
            while "info ready" not in agent.stderr.readline():
                assert agent.poll() is None
            agent.stderr.close()
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
                agent.send_signal(number)
            listing = [sys.executable, "-m", "dra_agent", "claim", "list", "--state-dir", str(tmp_path / "s")]
            assert subprocess.run(listing, capture_output=True, timeout=TIMEOUT_S, check=False).returncode == 0
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(TIMEOUT_S) == 0
        finally:
            agent.kill()
