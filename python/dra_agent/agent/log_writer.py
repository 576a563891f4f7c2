"""Writes log lines on a thread: a reader of standard error that stalls must stop nothing but the log.

Lines wait in a bounded queue. Those that do not fit are dropped and counted, and a line reports them once the reader
reads again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque

from dra_agent.threads import start_thread

MAX_QUEUE_BYTES = 1 << 20
"""Bytes that wait while nothing reads: a few thousand lines."""
FLUSH_TIMEOUT_S = 2.0
"""Seconds for which `flush` waits for a reader."""
_MAX_BATCH_BYTES = 1 << 16


class LogWriter(logging.Handler):
    """Writes records to a file descriptor, in their order. No call waits for its reader, except `flush`."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` stays open as long as the process. Raises NoThreadError."""
        super().__init__()
        self._descriptor = descriptor
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._unreported = 0
        """Lines that were dropped and are not reported yet."""
        self._is_writing = False
        self._changed = threading.Condition(threading.Lock())
        self.dropped = 0
        """Lines that were dropped since the start."""
        start_thread("log", self._write_all)

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record into the queue, or drop it."""
        try:
            line = self._encoded(record)
        except Exception:  # noqa: BLE001 - as logging itself: a record that cannot be formatted must not end the work
            self.handleError(record)
            return
        with self._changed:
            if self._bytes + len(line) > MAX_QUEUE_BYTES:
                self.dropped += 1
                self._unreported += 1
                return
            if self._unreported:
                self._put(self._report())
            self._put(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until the lines before are written, for a limited time. `logging.shutdown` calls it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._is_writing, FLUSH_TIMEOUT_S)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue)
                self._is_writing = True
                batch = self._take()
                if self._unreported and not self._queue:
                    batch += self._report()
            if not self._write(batch):
                with self._changed:
                    self.dropped += batch.count(b"\n")

    def _take(self) -> bytes:
        lines: list[bytes] = []
        size = 0
        while self._queue and (not lines or size + len(self._queue[0]) <= _MAX_BATCH_BYTES):
            lines.append(self._queue.popleft())
            size += len(lines[-1])
        self._bytes -= size
        return b"".join(lines)

    def _put(self, line: bytes) -> None:
        self._queue.append(line)
        self._bytes += len(line)

    def _report(self) -> bytes:
        count, self._unreported = self._unreported, 0
        message = "lines of the log were dropped, because nothing read standard error"
        record = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": message, "lines": count}
        return self._encoded(logging.makeLogRecord(record))

    def _write(self, data: bytes) -> bool:
        """Write everything, however long it takes; return False if the descriptor has no reader any more."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select((), (self._descriptor,), ())
            except OSError:
                return False
        return True
