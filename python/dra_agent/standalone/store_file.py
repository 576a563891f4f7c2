"""The SQLite file of the store: its schema, its connections, and the check of its content."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import msgspec

from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json

FILE = "objects.db"
MODE = 0o600
COMPANIONS = ("-wal", "-shm")
"""Endings of SQLite's files next to it."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (kind, namespace, name)
)
"""
READ_CACHE_KIB = 256
"""Pages that SQLite caches for reads, instead of its default of 2 MiB."""


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the file for changes, and create it if missing. Raises sqlite3.DatabaseError for a damaged one."""
    # SQLite makes its -wal and -shm with the mode of the database, and the database with the umask applied.
    restrict(path)
    # Autocommit is off: `with connection` is one transaction, and FULL makes its commit durable in WAL mode.
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(SCHEMA)
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        for (body,) in connection.execute("SELECT body FROM objects"):
            decode_json(body, type=dict)
    except msgspec.DecodeError as error:
        connection.close()
        raise sqlite3.DatabaseError(f"an object is not JSON: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the file for reads."""
    reader = sqlite3.connect(path, check_same_thread=False)
    try:
        reader.execute(f"PRAGMA cache_size = -{READ_CACHE_KIB}")
        reader.execute("PRAGMA query_only = ON")
    except BaseException:
        reader.close()
        raise
    return reader


def restrict(path: Path) -> None:
    """Make the file, and SQLite files of an older agent next to it, readable by the agent only; create it if missing.

    Raises sqlite3.OperationalError.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        try:
            os.fchmod(handle, MODE)
        finally:
            os.close(handle)
        for suffix in COMPANIONS:
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).chmod(MODE)
    except OSError as error:
        raise sqlite3.OperationalError(f"{path}: {error.strerror}") from error


def unused_name(path: Path) -> Path:
    """Return the first name for a file that is set aside; `dra-agent doctor` reports all of them."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    return aside


def last_aside(path: Path) -> Path:
    """Return the file that was set aside last; the name that the next one gets if there is none.

    It need not have the highest number: `unused_name` uses those of removed files. A rename changes the ctime.
    """
    names = [file for file in path.parent.glob(f"{path.name}.corrupt-*") if file.name.rpartition("-")[2].isdecimal()]
    return max(names, key=lambda file: file.stat().st_ctime_ns, default=unused_name(path))


def refused(path: Path, error: Exception) -> RetryableError:
    """Return the error of a file that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) else error
    return RetryableError(
        f"cannot be written: {reason}", where=str(path), hint="check free space and permissions of the state directory"
    )
