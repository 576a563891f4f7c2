"""A file whose existence is a notice: for clouds and scripts without support in this agent.

An empty file is a notice without a deadline. A JSON object has details: {"kind": "hint"|"notice",
"deadline": time, "event": text, "what": text}, each of them optional.

A shell empties a file before it writes to it, so an empty file may be the beginning of a hint. No beginning of a JSON
object is a JSON object: a complete one is reported at once. Anything else is reported when it has not changed for the
interval between two polls.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from dra_agent.clock import STEADY, wall_now
from dra_agent.json_decode import decode_json
from dra_agent.reclaim.signal import Signal, SignalSink, SourceError, ascii_line, clamp_deadline, parse_time
from dra_agent.reclaim.signals.polling import PollSchedule, poll_forever

POLL_INTERVAL_S = 1.0
MAX_PAUSES = 10
"""Waits in one poll for a file that is being written."""
MIN_PAUSE_S = 0.01
"""The kernel's time stamps of files lag behind its clock by up to this (one tick)."""
_MAX_FILE_BYTES = 4096
_MAX_LEAD = timedelta(days=7)
_DEFAULT_LEAD = timedelta(seconds=30)


class _FileSignal(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["hint", "notice"] = "notice"
    deadline: str = ""
    event: str = "file"
    description: str = msgspec.field(default="", name="what")


class _Content(msgspec.Struct, frozen=True):
    inode: int
    modified_ns: int
    """Unix time, by the wall clock."""
    text: bytes


class FileSource:
    """The file, polled."""

    names = ("file",)

    def __init__(
        self,
        path: Path,
        *,
        make_schedule: Callable[[float], PollSchedule] = PollSchedule,
        now: Callable[[], datetime] = STEADY.now,
        wall: Callable[[], datetime] = wall_now,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._path = path
        self._make_schedule = make_schedule
        self._now = now
        self._wall = wall
        self._sleep = sleep

    async def run(self, sink: SignalSink) -> None:
        """Poll once a second: one system call."""
        await poll_forever("file", self.poll, self._make_schedule(POLL_INTERVAL_S), sink)

    async def released(self) -> None:
        """Nothing waits for the release."""

    async def poll(self) -> Sequence[Signal]:
        """Read the file, if it exists; raises SourceError if it is invalid.

        While the file is being written, this waits: its content is neither a notice nor the end of one.
        """
        content = self._read()
        for _ in range(MAX_PAUSES):
            pause_s = 0.0 if content is None else self._seconds_until_stable(content)
            if not pause_s:
                break
            await self._sleep(pause_s)
            before, content = content, self._read()
            if content == before:
                break
        else:
            raise SourceError(
                "changes at every poll: write to a temporary file in its directory, then rename that",
                where=str(self._path),
            )
        return () if content is None else (self._signal_of(content.text),)

    def _seconds_until_stable(self, content: _Content) -> float:
        """Return 0.0 for a complete JSON object, and for content that is old enough."""
        if content.text.strip():
            try:
                decode_json(content.text, type=_FileSignal)
            except msgspec.DecodeError:
                pass
            else:
                return 0.0
        age_s = self._wall().timestamp() - content.modified_ns / 1e9
        if age_s >= POLL_INTERVAL_S:
            return 0.0
        # A time of modification in the future is not one of this clock, which was stepped.
        return POLL_INTERVAL_S if age_s < 0 else max(MIN_PAUSE_S, POLL_INTERVAL_S - age_s)

    def _signal_of(self, text: bytes) -> Signal:
        try:
            values = decode_json(text, type=_FileSignal) if text.strip() else _FileSignal()
            announced = parse_time(values.deadline) if values.deadline else None
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            raise SourceError(f"invalid content: {ascii_line(str(error))}", where=str(self._path)) from error
        description = ascii_line(values.description) or f"{self._path} is there"
        if announced is None:
            return Signal("file", values.kind, ascii_line(values.event), description)
        deadline, deadline_note, _ = clamp_deadline(
            announced, ahead=STEADY.offset, now=self._now(), default_lead=_DEFAULT_LEAD, max_lead=_MAX_LEAD
        )
        return Signal("file", values.kind, ascii_line(values.event), description, deadline, deadline_note=deadline_note)

    def _read(self) -> _Content | None:
        try:
            # Never through a link, and never waiting for the other end of a pipe.
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", where=str(self._path)) from error
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise SourceError("is not a regular file", where=str(self._path))
            if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise SourceError("can be written by others than root and the agent", where=str(self._path))
            text = os.read(handle, _MAX_FILE_BYTES + 1)
            # After the text: its last change is never later than this time of modification.
            about = os.fstat(handle)
        finally:
            os.close(handle)
        if len(text) > _MAX_FILE_BYTES:
            raise SourceError(f"is longer than {_MAX_FILE_BYTES} bytes", where=str(self._path))
        return _Content(about.st_ino, about.st_mtime_ns, text)
