"""`dra-agent claim run`: the claim exists as long as the command, however either of them ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cli.manifests import CLASS, claim, write
from dra_agent.cli.claim_guard import STOP_TIMEOUT_S, ClaimGuard
from dra_agent.cli.claim_run import expand
from eventually import DEADLINE_S, eventually
from standalone.service_thread import ServiceThread

Command = Callable[..., tuple[int, str, str]]
AGENT = Path(sys.executable).with_name("dra-agent")
TRAP = "trap 'touch ended; exit 7' TERM HUP INT; touch ready; while :; do sleep 0.1; done"
pytestmark = pytest.mark.usefixtures("agent")


@pytest.fixture
def run(command: Command) -> Command:
    """Run a command with the claim `train` of two devices."""
    write(Path("claim.yaml"), CLASS, claim("train", 2))
    return lambda *words: command("claim", "run", "-f", "claim.yaml", "--timeout", str(int(DEADLINE_S)), *words)


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([AGENT, "claim", "run", "-f", "claim.yaml", *words])


def claims(command: Command) -> list[str]:
    return [entry["name"] for entry in json.loads(command("claim", "list", "-o", "json")[1])]


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or no parent has waited for it: not every container has an init process."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_command_gets_the_ids_and_the_claim_is_released(run: Command, command: Command) -> None:
    script = 'printf "%s\\n" "$@" "$DRA_AGENT_CLAIM" "$DRA_AGENT_CDI_DEVICES" > out; exit 3'
    code, text, errors = run("--", "sh", "-c", script, "sh", "--device", "{cdi}", "last")
    assert (code, text, errors) == (3, "", "")
    words = Path("out").read_text().split("\n")
    ids = [word for word in words[:4] if word != "--device"]
    assert words == ["--device", ids[0], "--device", ids[1], "last", "default/train", " ".join(ids), ""]
    assert len(set(ids)) == 2 and claims(command) == []


def test_a_file_serves_several_runs_by_name(run: Command) -> None:
    assert run("--name", "other", "--", "sh", "-c", 'echo "$DRA_AGENT_CLAIM" > out')[0] == 0
    assert Path("out").read_text() == "default/other\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--", "sh", "-c", "kill -9 $$"), 137, ""),
        (("--", "no-such-command"), 127, "no-such-command: No such file or directory"),
        (("--", "/"), 126, "/: Permission denied"),
        ((), 2, "no command is given"),
    ],
)
def test_exit_codes_are_those_of_a_shell(
    run: Command, command: Command, words: tuple[str, ...], code: int, message: str
) -> None:
    result, _, errors = run(*words)
    assert result == code and message in errors
    assert claims(command) == []


def test_an_existing_claim_is_neither_used_nor_released(run: Command, command: Command) -> None:
    assert command("claim", "apply", "-f", "claim.yaml")[0] == 0
    code, _, errors = run("--", "touch", "out")
    assert code == 2 and "default/train: a claim of this name exists" in errors
    assert claims(command) == ["train"] and not Path("out").exists()


def test_devices_that_are_not_ready_in_time_end_the_run(run: Command, command: Command) -> None:
    write(Path("claim.yaml"), CLASS, claim("train", 3))
    code, _, errors = command("claim", "run", "-f", "claim.yaml", "--timeout", "0", "--", "touch", "out")
    assert code == 1 and "claim default/train: is pending after 0 s" in errors
    assert "dra-agent explain claim/train" in errors
    assert claims(command) == [] and not Path("out").exists()


def test_a_file_with_several_claims_is_refused(command: Command) -> None:
    write(Path("claim.yaml"), CLASS, claim("a"), claim("b"))
    code, _, errors = command("claim", "run", "-f", "claim.yaml", "--", "true")
    assert code == 2 and "claim.yaml:" in errors and "2 ResourceClaims, and a run has one" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_reach_the_command_and_the_claim_is_released(run: Command, command: Command, number: int) -> None:
    process = start("--", "sh", "-c", TRAP)
    eventually(Path("ready").exists)
    assert claims(command) == ["train"]
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == 7 and Path("ended").exists()
    assert claims(command) == []


def test_a_signal_before_the_command_releases_the_claim(run: Command, command: Command) -> None:
    write(Path("claim.yaml"), CLASS, claim("train", 3))
    process = start("--timeout", "1h", "--", "touch", "out")
    eventually(lambda: claims(command) == ["train"])
    process.terminate()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert claims(command) == [] and not Path("out").exists()


def test_a_killed_run_ends_its_command_and_releases_the_claim(run: Command, command: Command) -> None:
    process = start("--", "sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 1000")
    eventually(Path("pid").exists)
    process.kill()
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    eventually(lambda: claims(command) == [])
    assert has_ended(int(Path("pid").read_text()))


def test_a_command_that_kills_its_run_is_ended_before_the_claim_is_released(run: Command, command: Command) -> None:
    kill_run = "kill -KILL $(cut -d' ' -f4 /proc/$PPID/stat)"
    process = start("--", "sh", "-c", f"echo $$ > pid.new; mv pid.new pid; {kill_run}; exec sleep 1000")
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    eventually(lambda: Path("pid").exists() and claims(command) == [])
    assert has_ended(int(Path("pid").read_text()))


def test_a_claim_of_a_killed_run_is_released_by_the_next_one(run: Command, command: Command) -> None:
    process = start("--", "sh", "-c", "touch ready; exec sleep 1000")
    eventually(Path("ready").exists)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGSTOP)
    for one in below:
        one.kill()
    process.kill()
    process.wait(DEADLINE_S)
    eventually(lambda: all(has_ended(one.pid) for one in below))
    assert claims(command) == ["train"], "nothing is left that could release it"
    code, _, errors = run("--", "sh", "-c", "exit 5")
    assert code == 5 and "default/train is of an earlier run that was killed: it is released first" in errors
    assert claims(command) == []


def test_a_deadline_that_passes_between_two_checks_still_ends_the_command(
    agent: ServiceThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = itertools.count(0.0, STOP_TIMEOUT_S - 0.01)
    monkeypatch.setattr("dra_agent.cli.claim_guard.time", SimpleNamespace(monotonic=lambda: next(clock)))
    connection: Any = SimpleNamespace(path=agent.path, close=lambda: None)
    guard = ClaimGuard(connection, "default", "train", "token")
    pid = tmp_path / "pid"
    guard.start(["sh", "-c", f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000"], {})
    eventually(pid.exists)
    guard.end(released=False)
    os.waitpid(guard.pid, 0)
    left = int(pid.read_text())
    try:
        assert has_ended(left)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("script", ["exec sleep 1000", "setsid sleep 1000 & touch ready"])
def test_the_claim_of_a_killed_run_is_held_while_its_command_lives(run: Command, command: Command, script: str) -> None:
    process = start("--", "sh", "-c", f"touch ready; {script}")
    eventually(Path("ready").exists)
    guard = psutil.Process(guard_of(process))
    eventually(lambda: [one.name() for one in guard.children()] == ["sleep"])
    (left,) = guard.children()
    try:
        process.send_signal(signal.SIGSTOP)
        guard.kill()
        process.kill()
        process.wait(DEADLINE_S)
        eventually(lambda: has_ended(guard.pid))
        code, _, errors = command("claim", "run", "-f", "claim.yaml", "--timeout", "0", "--", "touch", "out")
        held = (
            f"processes of an earlier run that was killed have this claim after 0 s: sleep ({left.pid}); end them, or"
        )
        assert code == 1 and held in errors
        assert claims(command) == ["train"] and not Path("out").exists()
    finally:
        left.kill()
    eventually(lambda: has_ended(left.pid))
    assert run("--", "sh", "-c", "exit 5")[0] == 5
    assert claims(command) == []


def test_a_run_waits_for_an_earlier_one_of_the_same_claim(run: Command, command: Command) -> None:
    earlier = start("--", "sh", "-c", "touch ready; until [ -e stop ]; do sleep 0.02; done; exit 3")
    eventually(Path("ready").exists)
    with Path("errors").open("w") as errors:
        words = [str(AGENT), "claim", "run", "-f", "claim.yaml", "--timeout", "10m", "--", "sh", "-c", "exit 5"]
        later = subprocess.Popen(words, stderr=errors)
    eventually(lambda: "waiting for the earlier run that has claim default/train" in Path("errors").read_text())
    assert claims(command) == ["train"] and earlier.poll() is None
    Path("stop").touch()
    assert earlier.wait(DEADLINE_S) == 3 and later.wait(DEADLINE_S) == 5
    assert claims(command) == []


def test_a_run_does_not_take_the_claim_of_one_that_lives(run: Command, command: Command) -> None:
    earlier = start("--", "sh", "-c", TRAP)
    eventually(Path("ready").exists)
    code, _, errors = command("claim", "run", "-f", "claim.yaml", "--timeout", "0", "--", "touch", "out")
    assert code == 1 and f"another run has this claim after 0 s: process {earlier.pid} or " in errors
    assert claims(command) == ["train"] and not Path("out").exists()
    earlier.terminate()
    assert earlier.wait(DEADLINE_S) == 7


DAEMON = """\
import os, sys, time
if os.fork():
    sys.exit(3)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 1000)
open("daemon.new", "w").write(str(os.getpid()))
os.rename("daemon.new", "daemon")
while not os.path.exists("stop"):
    time.sleep(0.02)
"""
"""A command that ends with code 3, and leaves a process in a session of its own without open files."""


def daemon_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Return the process that the command has left, once the command has ended."""
    eventually(Path("daemon").exists)
    daemon = psutil.Process(int(Path("daemon").read_text()))
    guard = psutil.Process(guard_of(process))
    eventually(lambda: guard.children() == [daemon])
    return daemon


def guard_of(process: subprocess.Popen[bytes]) -> int:
    return psutil.Process(process.pid).children()[0].pid


def test_the_claim_is_held_until_a_daemon_of_the_command_has_ended(run: Command, command: Command) -> None:
    process = start("--", sys.executable, "-c", DAEMON)
    daemon_of(process)
    assert claims(command) == ["train"] and process.poll() is None
    Path("stop").touch()
    assert process.wait(DEADLINE_S) == 3
    assert claims(command) == []


def test_a_killed_run_ends_what_its_command_has_left(run: Command, command: Command) -> None:
    process = start("--", sys.executable, "-c", DAEMON)
    daemon = daemon_of(process)
    process.kill()
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    eventually(lambda: claims(command) == [])
    assert has_ended(daemon.pid)


def test_the_claim_is_held_if_the_guard_is_killed(run: Command, command: Command) -> None:
    process = start("--", sys.executable, "-c", DAEMON)
    daemon = daemon_of(process)
    psutil.Process(guard_of(process)).kill()
    eventually(lambda: daemon.ppid() == process.pid)
    assert claims(command) == ["train"] and process.poll() is None
    Path("stop").touch()
    assert process.wait(DEADLINE_S) == 3
    assert claims(command) == []


def test_the_exit_code_is_that_of_the_command_if_the_guard_is_killed(run: Command, command: Command) -> None:
    process = start("--", "sh", "-c", TRAP)
    eventually(Path("ready").exists)
    guard = psutil.Process(guard_of(process))
    (shell,) = [one for one in guard.children() if one.name() == "sh"]
    guard.kill()
    eventually(lambda: shell.ppid() == process.pid)
    assert claims(command) == ["train"]
    process.terminate()
    assert process.wait(DEADLINE_S) == 7 and claims(command) == []


def test_a_signal_ends_what_the_command_has_left(run: Command, command: Command) -> None:
    process = start("--", sys.executable, "-c", DAEMON)
    daemon = daemon_of(process)
    process.terminate()
    assert process.wait(DEADLINE_S) == 3
    assert has_ended(daemon.pid) and claims(command) == []


def test_the_processes_that_hold_a_claim_are_named(run: Command, command: Command) -> None:
    with Path("errors").open("w") as errors:
        words = [str(AGENT), "claim", "run", "-f", "claim.yaml", "--", sys.executable, "-c", DAEMON]
        process = subprocess.Popen(words, stderr=errors)
    eventually(lambda: "the claim is held until these processes have ended: python" in Path("errors").read_text())
    Path("stop").touch()
    assert process.wait(DEADLINE_S) == 3


@pytest.fixture
def restart(agent: ServiceThread, tmp_path: Path, preparer: Any, devices: Any) -> Iterator[Callable[[], None]]:
    """Start the agent again after a test has stopped it."""
    started: list[ServiceThread] = []
    yield lambda: started.append(ServiceThread(tmp_path / "state", preparer, devices))
    for running in started:
        running.stop()


@pytest.mark.parametrize("end", ["the run ends", "the run is killed"])
def test_the_claim_is_released_when_the_agent_returns(
    run: Command, command: Command, agent: ServiceThread, restart: Callable[[], None], end: str
) -> None:
    process = start("--", "sh", "-c", TRAP)
    eventually(Path("ready").exists)
    agent.stop()
    if end == "the run is killed":
        process.kill()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
    else:
        process.terminate()
    eventually(Path("ended").exists)
    restart()
    if end == "the run ends":
        assert process.wait(DEADLINE_S) == 7
        assert claims(command) == []
    eventually(lambda: claims(command) == [])


def test_a_release_that_takes_long_is_left_to_another_process(
    run: Command,
    command: Command,
    agent: ServiceThread,
    restart: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dra_agent.cli.claim_run.RELEASE_TIMEOUT_S", 0.0)

    def stop_when_ready() -> None:
        eventually(Path("ready").exists)
        agent.stop()
        Path("stopped").touch()

    stopping = threading.Thread(target=stop_when_ready)
    stopping.start()
    code, _, errors = run("--", "sh", "-c", "touch ready; until [ -e stopped ]; do sleep 0.1; done; exit 3")
    stopping.join(DEADLINE_S)
    assert code == 3 and "claim default/train is not released yet, which a process retries: " in errors
    restart()
    eventually(lambda: claims(command) == [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_ends_during_its_apply_leaves_no_claim(
    command: Command, tmp_path: Path, preparer: Any, devices: Any, number: int, agent: ServiceThread
) -> None:
    agent.stop()
    began, may_continue, ended = threading.Event(), threading.Event(), threading.Event()

    def validate(value: dict[str, Any]) -> list[str]:
        if value["metadata"]["name"] == "train":
            began.set()
            assert may_continue.wait(DEADLINE_S)
            ended.set()
        return []

    slow = ServiceThread(tmp_path / "state", preparer, devices, validate)
    try:
        write(Path("claim.yaml"), CLASS, claim("train"))
        process = start("--", "touch", "out")
        assert began.wait(DEADLINE_S)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) in (128 + number, -number)
        may_continue.set()
        assert ended.wait(DEADLINE_S)
        # Requests of one service have one thread for validation, and one that stores: this follows the other.
        write(Path("later.yaml"), CLASS, claim("later"))
        assert command("claim", "apply", "-f", "later.yaml")[0] == 0
        if number == signal.SIGTERM:
            assert claims(command) == ["later"]
        eventually(lambda: claims(command) == ["later"])
    finally:
        may_continue.set()
        slow.stop()
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("podman run --device {cdi} image", "podman run --device a --device b image"),
        ("ctr run --device={cdi} image", "ctr run --device=a --device=b image"),
        ("show {cdi} --all", "show a b --all"),
        ("x --flag=1 {cdi}", "x --flag=1 a b"),
        ("no placeholder", "no placeholder"),
    ],
)
def test_placeholders_are_repeated_for_each_id(words: str, expected: str) -> None:
    assert expand(words.split(), ["a", "b"]) == expected.split()
    assert expand(["run", "--device", "{cdi}", "image"], []) == ["run", "image"]
