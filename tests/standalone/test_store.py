"""The store keeps acknowledged objects after restarts and damage."""

from __future__ import annotations

import ast
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dra_agent.errors import RetryableError
from dra_agent.standalone.store import Store
from dra_agent.standalone.store_file import FILE
from small_file_system import fill, small_file_system


def filled(directory: Path, count: int = 200) -> None:
    store = Store(directory)
    for number in range(count):
        store.put("ResourceClaim", "ns", f"c{number}", {"number": number, "filler": "x" * 200})
    store.close()


def test_objects_keep_their_order_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("b", "a", "c"):
        store.put("K", "ns", name, {"name": name})
    store.put("K", "ns", "b", {"name": "b", "changed": True})
    store.delete("K", "ns", "a")
    store.put("K", "ns", "a", {"name": "a"})
    store.close()
    reopened = Store(tmp_path)
    assert [stored.value["name"] for stored in reopened.list("K")] == ["b", "c", "a"]
    assert reopened.get("K", "ns", "b") == {"name": "b", "changed": True}
    assert reopened.get("K", "ns", "nope") is None
    assert reopened.delete("K", "ns", "nope") is False
    assert reopened.problems == []
    reopened.close()


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_the_store_is_private_to_the_agent_with_any_umask(tmp_path: Path, umask: int) -> None:
    # In a separate process: all threads of a process share its umask.
    script = (
        "import os, sys, pathlib; os.umask(int(sys.argv[2])); from dra_agent.standalone.store import Store;"
        "store = Store(pathlib.Path(sys.argv[1])); store.put('K', 'ns', 'a', {});"
        "print({path.name: oct(path.stat().st_mode & 0o777) for path in pathlib.Path(sys.argv[1]).iterdir()})"
    )
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(umask)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert ast.literal_eval(process.stdout) == dict.fromkeys(
        (FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}.reserve"), "0o600"
    )


def test_permissions_of_an_older_store_are_restricted(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / FILE).chmod(0o644)
    store = Store(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    store.close()


def test_a_position_is_never_reused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("K", "", "a", {})
    (first,) = store.list("K")
    store.delete("K", "", "a")
    store.put("K", "", "a", {})
    (second,) = store.list("K")
    assert second.position > first.position
    store.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_is_set_aside_and_intact_objects_are_kept(tmp_path: Path, seed: int) -> None:
    filled(tmp_path)
    path = tmp_path / FILE
    size = path.stat().st_size
    start = random.Random(seed).randrange(4096, size - 4096)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(random.Random(seed).randbytes(2048)))
    store = Store(tmp_path)
    values = [stored.value for stored in store.list("ResourceClaim")]
    assert all(value == {"number": value["number"], "filler": "x" * 200} or store.problems == [] for value in values)
    if store.problems:
        assert "set aside as objects.db.corrupt-1" in store.problems[0]
        assert (tmp_path / "objects.db.corrupt-1").exists()
        assert len(values) >= 100, "2 KiB of damage must not lose half of the objects"
    store.put("ResourceClaim", "ns", "new", {})
    store.close()


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_not_a_store_does_not_stop_the_agent(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    store = Store(tmp_path)
    assert store.list("K") == []
    assert bool(store.problems) == bool(content)
    store.close()


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000, None])
def test_every_connection_to_a_damaged_store_is_closed(
    tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    if content is None:
        with (tmp_path / FILE).open("r+b") as file:
            file.seek(3 * 4096)
            file.write(b"\xff" * 4096)
    else:
        (tmp_path / FILE).write_bytes(content)
    opened: dict[int, str] = {}
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            opened.pop(id(self), None)
            super().close()

    def tracked(path: Path, **options: Any) -> sqlite3.Connection:
        connection = connect(path, factory=Connection, **options)
        opened[id(connection)] = path.name
        kept.append(connection)
        return connection

    kept: list[sqlite3.Connection] = []
    monkeypatch.setattr(sqlite3, "connect", tracked)
    store = Store(tmp_path)
    assert store.problems and sorted(opened.values()) == [FILE, FILE]
    store.close()
    assert len(kept) == 5 and opened == {}


def test_a_missing_directory_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match=r"objects\.db: cannot be written.*check free space and permissions"):
        Store(tmp_path / "nope")


def test_objects_can_be_changed_and_deleted_on_a_full_disk_and_none_added(tmp_path: Path) -> None:
    with small_file_system(tmp_path, "6m") as small:
        store = Store(small)
        names = [f"c{number}" for number in range(300)]
        store.put_all([("K", "ns", name, {"name": name, "filler": "x" * 500}) for name in names])
        filler = fill(small)
        with pytest.raises(RetryableError, match="check free space"):
            for number in range(1000):
                store.put("K", "ns", f"more{number}", {"filler": "x" * 500})
        added = len(store.list("K"))
        for name in names:
            store.put("K", "ns", name, {"name": name, "deleted": True, "filler": "x" * 500})
        assert all(store.delete("K", "ns", name) for name in names)
        assert len(store.list("K")) == added - len(names)
        filler.unlink()
        store.put("K", "ns", "more", {})
        store.close()


def test_a_store_that_is_opened_on_a_full_disk_can_be_emptied(tmp_path: Path) -> None:
    with small_file_system(tmp_path, "6m") as small:
        filled(small)
        fill(small)
        store = Store(small)
        names = [stored.value["number"] for stored in store.list("ResourceClaim")]
        assert all(store.delete("ResourceClaim", "ns", f"c{number}") for number in names)
        with pytest.raises(RetryableError, match="no space is left for the release of claims"):
            store.put("ResourceClaim", "ns", "another", {})
        store.close()
        reopened = Store(small)
        assert reopened.list("ResourceClaim") == []
        reopened.close()
