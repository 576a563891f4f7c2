"""Rescues the readable objects of a damaged store. A crash at any point leaves the damaged store or the rescued one.

The objects are written to a file next to the damaged one, which stays in its place until all of them are on disk. The
commit is a rename of that file to RESCUED. From then on the damaged files are set aside, and the rescued one is put in
their place: by this process or, after a crash, by the next one.
"""

from __future__ import annotations

import heapq
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import msgspec

from dra_agent.atomic_file import sync_directory
from dra_agent.json_decode import decode_json
from dra_agent.standalone.store_file import COMPANIONS, SCHEMA, last_aside, restrict, unused_name

log = logging.getLogger(__name__)

UNFINISHED = ".rescuing"
"""Ending of the file that the objects are written to: without a commit it has no meaning."""
RESCUED = ".rescued"
"""Ending of the complete file, until it is in the place of the damaged one."""
MAX_TRIED_POSITIONS = 1_000_000
"""Positions, up to the highest one, that are tried whether or not the index has them: a damaged page may have any."""
MIN_ROW_BYTES = 8
"""Of a row in an index: it has a header, two lengths and a position (https://sqlite.org/fileformat2.html)."""

Row = tuple[str, str, str, bytes]


def resume(path: Path) -> list[str]:
    """Finish the rescue of an earlier process if it was committed, else undo it; return what to report.

    Raises OSError.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    if unfinished.exists():  # a read-only directory refuses to remove what is missing, too
        unfinished.unlink()
    if not path.with_name(path.name + RESCUED).is_file():
        return []
    aside = _put_in_place(path)
    log.error("store was damaged", extra={"path": str(path), "aside": aside.name})
    return [f"{path}: was damaged; set aside as {aside.name}, the objects read out of it were kept"]


def rescue(path: Path, reason: str) -> list[str]:
    """Replace a damaged file by one with its readable objects; return what to report.

    Raises OSError and sqlite3.DatabaseError; the damaged file is in its place then.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        kept = _build(unfinished, _readable(path))
        _sync(unfinished)
        unfinished.rename(path.with_name(path.name + RESCUED))
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    aside = _put_in_place(path)
    log.error("store damaged", extra={"path": str(path), "aside": aside.name, "kept": kept, "reason": reason})
    return [f"{path}: damaged ({reason}); set aside as {aside.name}, {kept} objects read out of it"]


def _build(path: Path, rows: Iterable[Row]) -> int:
    """Write rows to a new file, in this order; return how many there are."""
    restrict(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")  # a file that is not complete is removed
        connection.execute(SCHEMA)
        with connection:
            # Positions are given again: a damaged one may be the highest that there is.
            connection.executemany(
                "INSERT OR IGNORE INTO objects (kind, namespace, name, body) VALUES (?, ?, ?, ?)", rows
            )
        (kept,) = connection.execute("SELECT count(*) FROM objects").fetchone()
        return int(kept)


def _put_in_place(path: Path) -> Path:
    """Set the damaged files aside, and put the rescued one in their place; return the new path of the damaged one."""
    sync_directory(path.parent)
    aside = unused_name(path) if path.exists() else last_aside(path)
    # The database is the last: until it is renamed, a repeat chooses the same name.
    for suffix in (*COMPANIONS, ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    # SQLite would apply a -wal that is still there to the rescued file.
    sync_directory(path.parent)
    path.with_name(path.name + RESCUED).rename(path)
    sync_directory(path.parent)
    return aside


def _readable(path: Path) -> Iterator[Row]:
    """Read the intact rows of a damaged file one by one, in the order of positions; only damaged rows are lost."""
    with closing(sqlite3.connect(path)) as connection:
        for position in _positions(connection, path):
            try:
                row = connection.execute(
                    "SELECT kind, namespace, name, body FROM objects WHERE position = ?", (position,)
                ).fetchone()
                if row is not None:
                    decode_json(row[3], type=dict)
                    yield row
            except (sqlite3.DatabaseError, msgspec.DecodeError, TypeError):
                continue


def _positions(connection: sqlite3.Connection, path: Path) -> Iterator[int]:
    """Yield the positions that may have a row, ascending: those of the index, and the last MAX_TRIED_POSITIONS."""
    ranges = []
    for query in ("SELECT max(position) FROM objects", "SELECT seq FROM sqlite_sequence WHERE name = 'objects'"):
        with suppress(sqlite3.DatabaseError):
            row = connection.execute(query).fetchone()
            if row is not None and isinstance(row[0], int) and row[0] > 0:
                ranges.append(range(max(1, row[0] - MAX_TRIED_POSITIONS + 1), row[0] + 1))
    last = None
    for position in heapq.merge(_indexed(connection, path), *ranges):
        if position != last:
            yield position
        last = position


def _indexed(connection: sqlite3.Connection, path: Path) -> list[int]:
    """Return the positions that the index has, as far as it can be read; a damaged one can have any number of rows."""
    size = sum(file.stat().st_size for file in (path, path.with_name(path.name + COMPANIONS[0])) if file.exists())
    found: list[int] = []
    with suppress(sqlite3.DatabaseError):
        # The order is that of the index, which has all these columns: the table is not read.
        rows = connection.execute("SELECT position FROM objects ORDER BY kind, namespace, name")
        with closing(rows):
            found.extend(row[0] for row in islice(rows, size // MIN_ROW_BYTES) if isinstance(row[0], int))
    return sorted(found)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
