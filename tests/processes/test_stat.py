"""The state of a process, from /proc."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from dra_agent.processes.stat import process_ids, read_stat, start_time
from eventually import eventually


def test_a_process_has_the_state_that_other_tools_report() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None and stat.parent == os.getppid() and not stat.has_ended
    assert stat.threads == psutil.Process().num_threads()
    created = psutil.boot_time() + stat.started / os.sysconf("SC_CLK_TCK")
    assert created == pytest.approx(psutil.Process().create_time(), abs=1.0)
    assert os.getpid() in process_ids()


def test_a_process_that_has_ended_is_distinct_from_one_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        eventually(lambda: (stat := read_stat(process.pid)) is not None and stat.has_ended)
        process.wait()
    assert read_stat(process.pid) is None and start_time(process.pid) is None


def test_a_name_may_contain_what_separates_fields(tmp_path: Path) -> None:
    (tmp_path / "11").mkdir()
    (tmp_path / "11/stat").write_text(f"11 (a) Z 1 (b c) S 7 {'0 ' * 15}2 0 4711 0\n")
    stat = read_stat(11, tmp_path)
    assert stat is not None and stat == ("S", 7, 2, 4711)


def test_a_file_in_another_format_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "11").mkdir()
    (tmp_path / "11/stat").write_text("11 (a) S 7\n")
    with pytest.raises(ValueError, match="process 11 has 2 fields"):
        read_stat(11, tmp_path)
    assert start_time(11, tmp_path) is None
