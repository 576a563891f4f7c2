"""The operator's program: for every claim, in time, and gone afterwards."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import warnings
from pathlib import Path

import pytest

from dra_agent.reclaim.hook import run_hooks


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


def test_what_takes_too_long_is_killed_with_its_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = f"import time\nwhile True:\n    open('{tmp_path}/alive', 'w').close(); time.sleep(0.02)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"

    async def story() -> None:
        began = time.monotonic()
        await run_hooks(python(code), claims("x"), 1.5)
        assert time.monotonic() - began < 60

    asyncio.run(story())
    assert any("took too long" in record.message for record in caplog.records)
    (tmp_path / "alive").unlink(missing_ok=True)
    time.sleep(0.3)
    assert not (tmp_path / "alive").exists()


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
