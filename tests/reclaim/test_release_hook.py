"""The operator's program: for every claim, in time, and gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
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


def test_it_runs_once_for_each_claim_with_its_variables(tmp_path: Path) -> None:
    code = f"import os; open('{tmp_path}/' + os.environ['DRA_AGENT_CLAIM_NAME'], 'x').close()"
    names = [f"claim-{number}" for number in range(20)]
    asyncio.run(run_hooks(python(code), claims(*names), 600.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_there_is_no_shell(tmp_path: Path) -> None:
    asyncio.run(run_hooks(["touch", f"{tmp_path}/a; touch {tmp_path}/b"], claims("x"), 10.0))
    assert not (tmp_path / "b").exists()


def test_what_takes_too_long_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # The child and its own child have the pipe open for as long as they live.
    command = ["sh", "-c", f"sh -c 'echo alive; sleep 3600; :' >{pipe} & wait"]

    def told() -> bytes | None:
        """Give what the children said; None while they are silent, nothing once none of them lives."""
        with contextlib.suppress(BlockingIOError):
            return os.read(reader, 64)
        return None

    async def story() -> None:
        hook = asyncio.create_task(run_hooks(command, claims("x"), 10 * DEADLINE_S))
        await eventually_async(lambda: told() == b"alive\n")
        assert told() is None and not hook.done()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 10 * DEADLINE_S)
        await asyncio.wait_for(hook, DEADLINE_S)
        await eventually_async(lambda: told() == b"")

    try:
        asyncio.run(story())
    finally:
        os.close(reader)
    assert any("took too long" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("command", "said"),
    [(["/nowhere/hook"], "cannot be run"), (["/"], "cannot be run"), (python("raise SystemExit(3)"), "has ended")],
)
def test_one_that_fails_is_logged_and_stops_nobody(
    command: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(run_hooks(command, claims("a", "b"), 600.0))
    assert sum(said in record.message and record.levelname == "ERROR" for record in caplog.records) == 2


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    asyncio.run(run_hooks(python(f"open('{tmp_path}/x', 'w').close()"), claims("a"), 0.0))
    assert not list(tmp_path.iterdir())


def test_a_release_that_is_called_off_ends_its_hooks(tmp_path: Path) -> None:
    async def story() -> None:
        task = asyncio.create_task(run_hooks(python("import time; time.sleep(3600)"), claims("a", "b"), 3600.0))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait([task], timeout=60)
        assert task.cancelled()

    asyncio.run(story())


def test_every_hook_has_ended_when_a_release_has_been_called_off(tmp_path: Path) -> None:
    async def story(after: float) -> None:
        task = asyncio.create_task(run_hooks(["sleep", "3600"], claims("a", "b"), 3600.0))
        await asyncio.sleep(after)
        task.cancel()
        began = time.monotonic()
        await asyncio.wait([task], timeout=60)
        assert task.cancelled() and time.monotonic() - began < 30

    for number in range(12):
        asyncio.run(story(number * 0.0005))
    children = Path("/proc/thread-self/children").read_text().split()
    assert not [pid for pid in children if "sleep" in Path(f"/proc/{pid}/comm").read_text()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
