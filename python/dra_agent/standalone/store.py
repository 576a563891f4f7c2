"""The store of DeviceClasses and ResourceClaims, synced before a response.

It keeps objects and the order in which claims came; it does not interpret them.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from dra_agent import atomic_file
from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json
from dra_agent.standalone.reserve import Reserve, is_disk_full
from dra_agent.standalone.store_file import FILE, MODE, open_reader, open_writer, refused, unused_name
from dra_agent.standalone.store_rescue import rescue, resume

log = logging.getLogger(__name__)

UNUSABLE = "objects.jsonl"
_PUT = (
    "INSERT INTO objects (kind, namespace, name, body) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (kind, namespace, name) DO UPDATE SET body = excluded.body"
)
_FIND = "SELECT 1 FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
ROWS_AT_A_TIME = 500
"""Objects that are read while the lock is held; writers come between."""


class StoredObject(msgspec.Struct, frozen=True):
    """One object with its place in the order of arrival."""

    position: int
    value: dict[str, Any]


KEYS_PER_QUERY = 400
"""SQLite before 3.32 accepts 999 parameters."""


class Store:
    """Objects by kind, namespace and name. Safe for threads; every change is on disk when its call returns.

    A read has its own connection: it returns the last committed state, and does not wait for a change under way.
    """

    def __init__(self, directory: Path) -> None:
        """Open the store of a state directory, which must exist.

        A damaged file is quarantined, its readable objects are kept, and `problems` reports it.
        Raises RetryableError where the directory cannot be written.
        """
        self.path = directory / FILE
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._reserve = Reserve(self.path.with_name(f"{FILE}.reserve"))
        try:
            self.problems += resume(self.path)
            try:
                self._connection = self._open()
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                self.problems += rescue(self.path, str(error))
                self._connection = self._open()
            try:
                self._reader = open_reader(self.path)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.DatabaseError, OSError) as error:
            raise refused(self.path, error) from error
        self._reserve.fill()

    def put(self, kind: str, namespace: str, name: str, value: dict[str, Any]) -> None:
        """Keep an object; one that was there before keeps its place in the order."""
        self.put_all([(kind, namespace, name, value)])

    def put_all(self, objects: Iterable[tuple[str, str, str, dict[str, Any]]]) -> None:
        """Keep objects, each as kind, namespace, name and value, in this order: all of them or none.

        On a full disk, objects that were there before can still be replaced: a claim that is released, for example.
        """
        rows = [(kind, namespace, name, msgspec.json.encode(value)) for kind, namespace, name, value in objects]

        def add(connection: sqlite3.Connection) -> bool:
            return any(connection.execute(_FIND, row[:3]).fetchone() is None for row in rows)

        self._write(lambda connection: connection.executemany(_PUT, rows), adds=add)

    def rewrite(self, objects: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Replace objects, each as position and value: all of them or none."""
        rows = [(msgspec.json.encode(value), position) for position, value in objects]
        self._write(lambda connection: connection.executemany("UPDATE objects SET body = ? WHERE position = ?", rows))

    def set_aside(self, objects: Iterable[tuple[StoredObject, str]]) -> None:
        """Move objects that cannot be used, each with the reason, to a file next to this one; `problems` reports it."""
        objects = list(objects)
        aside = unused_name(self.path.with_name(UNUSABLE))
        lines = [msgspec.json.encode({"reason": reason, "value": stored.value}) for stored, reason in objects]
        try:
            atomic_file.write(aside, b"".join(line + b"\n" for line in lines), mode=MODE, durable=True)
        except OSError as error:
            raise refused(aside, error) from error
        positions = [(stored.position,) for stored, _ in objects]
        self._write(lambda connection: connection.executemany("DELETE FROM objects WHERE position = ?", positions))
        for stored, reason in objects:
            position = stored.position
            self.problems.append(f"{self.path}: object {position} cannot be used ({reason}); set aside in {aside.name}")
            log.error("stored object cannot be used", extra={"object": position, "aside": aside.name, "reason": reason})

    def delete(self, kind: str, namespace: str, name: str) -> bool:
        """Delete an object; return False if it does not exist."""
        query = "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
        return self._write(lambda connection: connection.execute(query, (kind, namespace, name))).rowcount > 0

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Find one object; raises RetryableError if the file cannot be read."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT body FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, namespace, name)
            ).fetchone()
            value: dict[str, Any] | None = decode_json(row[0], type=dict) if row else None
        return value

    def get_many(
        self, kind: str, keys: Sequence[tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[tuple[str, str], dict[str, Any]]:
        """Find objects by namespace and name: those that exist, in this order.

        With `max_bytes`, the last one is the first that reaches so many bytes with those before it. Raises as `get`.
        """
        found: dict[tuple[str, str], dict[str, Any]] = {}
        size = 0
        for first in range(0, len(keys), KEYS_PER_QUERY):
            part = keys[first : first + KEYS_PER_QUERY]
            # A join, because SQLite would read every object of the kind for `(namespace, name) IN (VALUES ...)`.
            placeholders = ", ".join(["(?, ?)"] * len(part))
            query = (
                f"SELECT namespace, name, body FROM (VALUES {placeholders}) AS wanted "  # noqa: S608 - has no values
                "CROSS JOIN objects ON kind = ? AND namespace = wanted.column1 AND name = wanted.column2"
            )
            with self._reading() as reader, closing(reader.execute(query, (*chain.from_iterable(part), kind))) as rows:
                for namespace, name, body in rows:
                    found[namespace, name] = decode_json(body, type=dict)
                    size += len(body)
                    if max_bytes is not None and size >= max_bytes:
                        return found
        return found

    def list(self, kind: str) -> list[StoredObject]:
        """Return every object of a kind in the order of creation."""
        return list(self.each(kind))

    def each(self, kind: str) -> Iterator[StoredObject]:
        """Yield every object of a kind in the order of creation, with few of them in memory.

        Raises RetryableError if the file cannot be read.
        """
        last = -1
        while True:
            with self._reading() as connection:
                rows = connection.execute(
                    "SELECT position, body FROM objects WHERE kind = ? AND position > ? ORDER BY position LIMIT ?",
                    (kind, last, ROWS_AT_A_TIME),
                ).fetchall()
                objects = [StoredObject(position, decode_json(body, type=dict)) for position, body in rows]
            yield from objects
            last = rows[-1][0] if rows else last
            if len(rows) < ROWS_AT_A_TIME:
                return

    def close(self) -> None:
        """Close the file."""
        with self._read_lock:
            self._reader.close()
        with self._lock:
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._read_lock:
            try:
                yield self._reader
            except (sqlite3.DatabaseError, msgspec.DecodeError) as error:
                raise RetryableError(
                    f"cannot be read: {error}",
                    where=str(self.path),
                    hint="check the disk (dmesg); a restart of the agent keeps what is readable",
                ) from error

    def _open(self) -> sqlite3.Connection:
        try:
            return open_writer(self.path)
        except sqlite3.OperationalError as error:
            if not is_disk_full(error):
                raise
        self._reserve.empty()
        return open_writer(self.path)

    def _write(
        self,
        change: Callable[[sqlite3.Connection], sqlite3.Cursor],
        *,
        adds: Callable[[sqlite3.Connection], bool] | None = None,
    ) -> sqlite3.Cursor:
        """Commit a change. On a full disk only one that `adds` no object, with the space of the reserve."""
        with self._lock:
            connection = self._connection
            try:
                if adds is not None and (reason := self._reserve.fill()) is not None and adds(connection):
                    raise sqlite3.OperationalError(f"no space is left for the release of claims: {reason}")
                try:
                    with connection:
                        return change(connection)
                except sqlite3.OperationalError as error:
                    if not is_disk_full(error) or (adds is not None and adds(connection)):
                        raise
                self._reserve.empty()
                # The pages that were written before can be used again.
                connection.execute("PRAGMA wal_checkpoint(RESTART)")
                with connection:
                    return change(connection)
            except sqlite3.DatabaseError as error:
                raise refused(self.path, error) from error
