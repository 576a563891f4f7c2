"""A file with the claim that is being allocated, which survives the process.

A claim that ends the process, by a defect or by the memory that it takes, would end it again at every start. A process
can also end for any other reason meanwhile: the claim has a strike, and fails with the third one in a row. The note has
the strikes before this evaluation, so a start that is repeated counts none twice. It needs to survive the process, not
a power loss: it is not synced. The strikes of all claims are.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.json_decode import decode_json
from dra_agent.standalone.claim import FAILED
from dra_agent.standalone.index import ClaimIndex

log = logging.getLogger(__name__)

FILE = "evaluating"
STRIKES_FILE = "evaluation-strikes.json"
MAX_STRIKES = 3
"""Evaluations of a claim in a row that a process does not survive, until the claim fails."""
NOTE_BYTES = 64
"""The note has always this length. A file that is truncated first goes to the disk when it is closed: ext4 does that
for files that are replaced (auto_da_alloc, Documentation/admin-guide/ext4.rst), which can take milliseconds."""
INTERRUPTED = (
    f"the agent ended while it evaluated this claim, {MAX_STRIKES} times in a row; apply it again to evaluate it again"
)


class Evaluation:
    """The note and the strikes, in the directory of the store."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._strikes_path = directory / STRIKES_FILE
        self._strikes: dict[str, int] = {}
        """By UID of a waiting claim; without strikes it is missing."""
        self._works = True
        self._lock = threading.Lock()
        self._stopped = False

    @contextmanager
    def several(self) -> Iterator[Callable[[str], None]]:
        """Open the note for the evaluations of several claims; the result notes the uid of the next one.

        The last one is noted until this ends or the process stops.
        """
        current = ""
        with self._opened() as note:

            def begin(uid: str) -> None:
                nonlocal current
                with self._lock:
                    if self._stopped:  # the file may be the next process's already
                        return
                    self._write(note, f"{uid} {self._strikes.get(uid, 0)}" if uid else "")
                    survived, current = current, uid
                    if survived != uid and self._strikes.pop(survived, 0):
                        self._save_strikes()

            try:
                yield begin
            finally:
                begin("")

    def stop(self) -> None:
        """Clear the file permanently: a process that is stopped was not ended by a claim."""
        with self._lock:
            self._stopped = True
            self._clear()

    def strike_interrupted(self, claims: ClaimIndex) -> None:
        """Count a strike for the claim that the last process did not finish with; let it fail with the last one."""
        saved = self._saved_strikes()
        self._strikes = {uid: strikes for uid, strikes in saved.items() if uid in claims.waiting}
        uid, before = self._interrupted()
        known = claims.of_uid(uid) if uid in claims.waiting else None
        if known is not None:
            self._strikes[uid] = before + 1
            log.warning("the agent ended while it evaluated a claim", extra={"claim": uid, "strikes": before + 1})
            if before + 1 >= MAX_STRIKES:
                claim = claims.read(known)
                claim["metadata"].setdefault("annotations", {})[FAILED] = INTERRUPTED
                log.error("claim is not evaluated again", extra={"claim": uid, "error": INTERRUPTED})
                claims.put([claim])
                del self._strikes[uid]
        if self._strikes != saved:
            self._save_strikes()
        self._clear()

    def _interrupted(self) -> tuple[str, int]:
        """Return the noted uid and its strikes before; "" where nothing is noted."""
        try:
            uid, _, strikes = self._path.read_text().strip().partition(" ")
        except (OSError, UnicodeDecodeError):
            return "", 0
        return uid, int(strikes) if strikes.isdecimal() else 0

    def _saved_strikes(self) -> dict[str, int]:
        try:
            return decode_json(self._strikes_path.read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.warning("strikes of claims are not known", extra={"path": str(self._strikes_path), "error": str(error)})
            return {}

    def _save_strikes(self) -> None:
        try:
            atomic_file.write(self._strikes_path, msgspec.json.encode(self._strikes), durable=True)
        except OSError as error:
            # The note counts on, as long as this claim is evaluated first.
            log.warning("cannot save strikes", extra={"path": str(self._strikes_path), "error": str(error)})

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
