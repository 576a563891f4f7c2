"""A damaged store is rescued whole or not at all: a crash at any point loses no readable object."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dra_agent.errors import RetryableError
from dra_agent.standalone.store import Store
from dra_agent.standalone.store_file import FILE

OBJECTS = 200
LOST_PAGE = 9
PAGE_BYTES = 4096


def fill(directory: Path) -> None:
    store = Store(directory)
    for number in range(OBJECTS):
        store.put("ResourceClaim", "ns", f"c{number}", {"number": number, "filler": "x" * 200})
    store.close()


def damage(directory: Path) -> None:
    with (directory / FILE).open("r+b") as file:
        file.seek(LOST_PAGE * PAGE_BYTES)
        file.write(b"\xff" * PAGE_BYTES)


def damaged(directory: Path, *, killed: bool = False) -> set[int]:
    """Make a store with a page that is not readable; return the numbers of the objects that are.

    `killed`: the last object is not in the file itself, but in that of SQLite next to it.
    """
    whole = directory.with_name("whole")
    whole.mkdir()
    fill(whole)
    store = Store(whole)
    if killed:
        store.put("ResourceClaim", "ns", "last", {"number": OBJECTS})
    shutil.copytree(whole, directory)
    assert (directory / f"{FILE}-wal").exists() == bool(killed) or not (directory / f"{FILE}-wal").stat().st_size
    store.close()
    damage(directory)
    readable = numbers(shutil.copytree(directory, directory.with_name("rescued")))
    assert OBJECTS / 2 < len(readable) < OBJECTS and (OBJECTS in readable) == killed
    return readable


def numbers(directory: Path) -> set[int]:
    store = Store(directory)
    try:
        return {stored.value["number"] for stored in store.list("ResourceClaim")}
    finally:
        store.close()


def open_and_crash(directory: Path, point: int) -> bool:
    """Open the store in a process that ends before the line of this number; return whether it ended there."""
    child = os.fork()
    if child == 0:
        seen: set[tuple[str, int]] = set()

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            if "/standalone/store" not in frame.f_code.co_filename:
                return None
            line = (frame.f_code.co_filename, frame.f_lineno)
            if event == "line" and line not in seen:
                if len(seen) == point:
                    os._exit(9)
                seen.add(line)
            return trace

        try:
            sys.settrace(trace)
            Store(directory)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_crash_at_any_point_loses_no_readable_object(tmp_path: Path, killed: bool) -> None:
    readable = damaged(tmp_path / "store", killed=killed)
    for point in range(1000):
        directory = shutil.copytree(tmp_path / "store", tmp_path / str(point))
        crashed = open_and_crash(directory, point)
        assert numbers(directory) == readable, f"after a crash before line {point}"
        left = {path.name for path in directory.iterdir()} - {
            f"{FILE}.{name}" for name in ("corrupt-1-wal", "corrupt-1-shm", "reserve")
        }
        assert left == {FILE, f"{FILE}.corrupt-1"}, f"after a crash before line {point}"
        assert numbers(directory) == readable, "once more"
        if not crashed:
            assert point > 20
            return
        shutil.rmtree(directory)
    pytest.fail("the rescue does not end")


def test_the_report_after_a_crash_names_the_damaged_file(tmp_path: Path) -> None:
    damaged(tmp_path / "store")
    (tmp_path / "store" / f"{FILE}.corrupt-2").write_text("of an earlier rescue")
    for point in range(1000):
        directory = shutil.copytree(tmp_path / "store", tmp_path / str(point))
        crashed = open_and_crash(directory, point)
        store = Store(directory)
        store.close()
        for problem in store.problems:
            (name,) = re.findall(r"set aside as (\S+),", problem)
            assert name == f"{FILE}.corrupt-1" and (directory / name).exists(), f"after a crash before line {point}"
        shutil.rmtree(directory)
        if not crashed:
            return
    pytest.fail("the rescue does not end")


def test_a_rescue_that_cannot_be_written_keeps_the_damaged_store(tmp_path: Path) -> None:
    readable = damaged(tmp_path / "store")
    before = (tmp_path / "store" / FILE).read_bytes()
    obstacle = tmp_path / "store" / f"{FILE}.rescued"
    (obstacle / "x").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(RetryableError, match=r"objects\.db: cannot be written: .*; check free space"):
            Store(tmp_path / "store")
    shutil.rmtree(obstacle)
    assert (tmp_path / "store" / FILE).read_bytes() == before
    assert numbers(tmp_path / "store") == readable


@pytest.mark.parametrize("position", [1 << 40, (1 << 63) - 1])
def test_a_rescue_ends_whatever_positions_the_objects_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    monkeypatch.setattr("dra_agent.standalone.store_rescue.MAX_TRIED_POSITIONS", 10_000)
    fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("UPDATE objects SET position = ? WHERE name = 'c7'", (position,))
    damage(tmp_path)
    store = Store(tmp_path)
    assert store.problems
    kept = [stored.value["number"] for stored in store.list("ResourceClaim")]
    assert kept[-1] == 7 and kept[:-1] == sorted(kept[:-1]) and len(kept) > OBJECTS / 2
    store.put("ResourceClaim", "ns", "new", {"number": -1})
    assert store.list("ResourceClaim")[-1].value == {"number": -1}
    store.close()
