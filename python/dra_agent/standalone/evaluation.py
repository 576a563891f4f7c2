"""A file with the claim that is being allocated, which survives the process.

A claim that ends the process, by a defect or by the memory that it takes, would end it again at every start. The note
needs to survive the process, not a power loss: it is not synced.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_agent.standalone.claim import FAILED
from dra_agent.standalone.index import ClaimIndex

log = logging.getLogger(__name__)

FILE = "evaluating"
NOTE_BYTES = 64
"""The note has always this length. A file that is truncated first goes to the disk when it is closed: ext4 does that
for files that are replaced (auto_da_alloc, Documentation/admin-guide/ext4.rst), which can take milliseconds."""
INTERRUPTED = "the agent ended while it evaluated this claim; apply it again to evaluate it again"


class Evaluation:
    """The note, in the directory of the store."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._works = True
        self._lock = threading.Lock()
        self._stopped = False

    @contextmanager
    def several(self) -> Iterator[Callable[[str], None]]:
        """Open the note for the evaluations of several claims; the result notes the uid of the next one.

        The last one is noted until this ends or the process stops.
        """
        with self._opened() as note:

            def begin(uid: str) -> None:
                with self._lock:
                    if not self._stopped:  # the file may be the next process's already
                        self._write(note, uid)

            try:
                yield begin
            finally:
                begin("")

    def stop(self) -> None:
        """Clear the file permanently: a process that is stopped was not ended by a claim."""
        with self._lock:
            self._stopped = True
            self._clear()

    def park_interrupted(self, claims: ClaimIndex) -> None:
        """Let a claim that the last process did not finish with fail, and those with the same spec."""
        try:
            uid = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return
        known = claims.of_uid(uid) if uid else None
        if known is not None:
            twins = [other for other in claims.each() if other.digest == known.digest and other.uid in claims.waiting]
            parked = [claims.read(other) for other in twins]
            for claim in parked:
                claim["metadata"].setdefault("annotations", {})[FAILED] = INTERRUPTED
                log.error(
                    "claim is not evaluated again", extra={"claim": claim["metadata"]["uid"], "error": INTERRUPTED}
                )
            claims.put(parked)
        self._clear()

    def _clear(self) -> None:
        with self._opened() as note:
            self._write(note, "")

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Open the file; None if that is not possible."""
        try:
            note = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._failed(error)
            yield None
            return
        try:
            yield note
        finally:
            os.close(note)

    def _write(self, note: int | None, uid: str) -> None:
        if note is None:
            return
        try:
            os.pwrite(note, uid.encode().ljust(NOTE_BYTES), 0)
            self._works = True
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        if self._works:
            log.warning("cannot note which claim is evaluated", extra={"path": str(self._path), "error": str(error)})
        self._works = False
