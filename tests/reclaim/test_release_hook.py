"""The release hook runs for every claim, within its time limit, and leaves no processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
import time
import warnings
from pathlib import Path

import pytest

from dra_agent.reclaim.standalone import run_hooks
from eventually import DEADLINE_S, eventually_async


def claims(*names: str) -> list[dict[str, str]]:
    return [{"DRA_AGENT_CLAIM_NAME": name, "DRA_AGENT_CLAIM_UID": f"uid-{name}"} for name in names]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_hook_runs_once_for_each_claim_with_its_variables(tmp_path: Path) -> None:
    code = f"import os; open('{tmp_path}/' + os.environ['DRA_AGENT_CLAIM_NAME'], 'x').close()"
    names = [f"claim-{number}" for number in range(20)]
    asyncio.run(run_hooks(python(code), claims(*names), 600.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_the_hook_runs_without_a_shell(tmp_path: Path) -> None:
    asyncio.run(run_hooks(["touch", f"{tmp_path}/a; touch {tmp_path}/b"], claims("x"), 10.0))
    assert not (tmp_path / "b").exists()


def test_a_slow_hook_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # The child and its child keep the pipe open while they run.
    command = ["sh", "-c", f"sh -c 'echo alive; sleep 3600; :' >{pipe} & wait"]

    def read_pipe() -> bytes | None:
        """Return the output of the children; None without output, b"" once none of them runs."""
        with contextlib.suppress(BlockingIOError):
            return os.read(reader, 64)
        return None

    async def scenario() -> None:
        hook = asyncio.create_task(run_hooks(command, claims("x"), 10 * DEADLINE_S))
        await eventually_async(lambda: read_pipe() == b"alive\n")
        assert read_pipe() is None and not hook.done()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 10 * DEADLINE_S)
        await asyncio.wait_for(hook, DEADLINE_S)
        await eventually_async(lambda: read_pipe() == b"")

    try:
        asyncio.run(scenario())
    finally:
        os.close(reader)
    assert any("took too long" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("command", "message"),
    [(["/nowhere/hook"], "cannot be run"), (["/"], "cannot be run"), (python("raise SystemExit(3)"), "has ended")],
)
def test_a_failing_hook_is_logged_and_does_not_stop_others(
    command: list[str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(run_hooks(command, claims("a", "b"), 600.0))
    assert sum(message in record.message and record.levelname == "ERROR" for record in caplog.records) == 2


def test_a_hook_waits_until_the_system_has_room_for_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario() -> dict[str, str]:
        command = python(f"open('{tmp_path}/ran', 'w').close()")
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            hooks = asyncio.create_task(run_hooks(command, claims("a"), 10 * DEADLINE_S))
            await asyncio.wait([hooks], timeout=0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        return await hooks

    assert asyncio.run(scenario()) == {}
    assert (tmp_path / "ran").exists()


def test_without_time_no_hook_is_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failures = asyncio.run(run_hooks(python(f"open('{tmp_path}/x', 'w').close()"), claims("a"), 0.0))
    assert not list(tmp_path.iterdir())
    assert failures == {"uid-a": "its hook was not started in time"}
    assert [record.message for record in caplog.records] == ["the hook was not started in time"]


def test_a_hook_that_the_system_never_has_room_for_is_reported_as_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.standalone.SHORTAGE_RETRY_S", 100 * DEADLINE_S)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario() -> dict[str, str]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            return await run_hooks(python(f"open('{tmp_path}/x', 'w').close()"), claims("a"), 10 * DEADLINE_S)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert asyncio.run(scenario()) == {"uid-a": "its hook cannot be run: Too many open files"}
    assert not list(tmp_path.iterdir())


def test_a_canceled_release_ends_its_hooks(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def scenario() -> None:
        code = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(3600)"
        task = asyncio.create_task(run_hooks(python(code), claims("a", "b"), 3600.0))
        await eventually_async(begun.exists)
        task.cancel()
        await asyncio.wait([task], timeout=60)
        assert task.cancelled()

    asyncio.run(scenario())


def test_all_hooks_have_ended_after_a_cancellation(tmp_path: Path) -> None:
    async def scenario(delay_s: float) -> None:
        task = asyncio.create_task(run_hooks(["sleep", "3600"], claims("a", "b"), 3600.0))
        await asyncio.sleep(delay_s)
        task.cancel()
        await asyncio.wait([task], timeout=DEADLINE_S)
        assert task.cancelled()

    for number in range(12):
        asyncio.run(scenario(number * 0.0005))
    children = Path("/proc/thread-self/children").read_text().split()
    assert not [pid for pid in children if "sleep" in Path(f"/proc/{pid}/comm").read_text()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
