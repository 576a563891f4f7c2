"""Writes log lines on a thread: a reader of standard error that stalls must stop nothing but the log.

Lines wait in a bounded queue. Those that do not fit are dropped and counted, and a line reports them once the reader
reads again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from queue import Empty, SimpleQueue

from dra_agent.supervisor import supervisor

MAX_QUEUE_BYTES = 1 << 20
"""Bytes that wait while nothing reads: a few thousand lines."""
FLUSH_TIMEOUT_S = 2.0
"""Seconds for which `flush` waits for a reader."""
_MAX_BATCH_BYTES = 1 << 16


class LogWriter(logging.Handler):
    """Writes records to a file descriptor, in their order. No call waits for its reader, except `flush`.

    It has no lock of its own: a finalizer that logs may run at any point of any of its methods, on the same thread.
    A `SimpleQueue` allows that, and each counter is changed by `emit`, under the reentrant lock of the handler, or by
    the thread that writes.
    """

    def __init__(self, descriptor: int) -> None:
        """`descriptor` stays open as long as the process. Raises NoThreadError."""
        super().__init__()
        self._descriptor = descriptor
        self._queue: SimpleQueue[bytes | int | threading.Event] = SimpleQueue()
        """Lines; the number of lines that were dropped before; what `flush` waits for."""
        self._put_bytes = 0
        self._taken_bytes = 0
        self._dropped = 0
        """Lines that did not fit."""
        self._marked = 0
        """Of these, those that the queue has the number of."""
        self._reported = 0
        """Of these, those that are reported."""
        self._lost = 0
        """Lines that could not be written."""
        supervisor().thread_loop("log", self._write_all, threading.Event())

    @property
    def dropped(self) -> int:
        """Lines that were dropped since the start."""
        return self._dropped + self._lost

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record into the queue, or drop it."""
        try:
            line = self._encoded(record)
        except Exception:  # noqa: BLE001 - as logging itself: a record that cannot be formatted must not end the work
            self.handleError(record)
            return
        # No finalizer runs between the read and the write of a counter: there is no call between them.
        size = len(line)
        if self._put_bytes - self._taken_bytes + size > MAX_QUEUE_BYTES:
            self._dropped += 1
            return
        if self._marked != self._dropped:
            self._marked = self._dropped
            self._queue.put(self._marked)
        self._put_bytes += size
        self._queue.put(line)

    def flush(self) -> None:
        """Wait until the lines before are written, for a limited time. `logging.shutdown` calls it."""
        is_written = threading.Event()
        self._queue.put(is_written)
        is_written.wait(FLUSH_TIMEOUT_S)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _write_all(self) -> None:
        while True:
            flushed: list[threading.Event] = []
            lines: list[bytes] = []
            is_written = False
            try:
                self._take(lines, flushed)
                is_written = self._write(b"".join(lines))
            finally:
                if not is_written:
                    self._lost += len(lines)
                for event in flushed:
                    event.set()

    def _take(self, lines: list[bytes], flushed: list[threading.Event]) -> None:
        """Wait for a line, and take those that follow it, up to the size of a batch."""
        item, size = self._queue.get(), 0
        while True:
            if isinstance(item, threading.Event):
                flushed.append(item)
            elif isinstance(item, int):
                self._report(item, lines)
            else:
                taken = len(item)
                self._taken_bytes += taken
                size += taken
                lines.append(item)
            if size >= _MAX_BATCH_BYTES:
                return
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
        self._report(self._dropped, lines)

    def _report(self, dropped: int, lines: list[bytes]) -> None:
        """Add a line about the lines that were dropped since the last one."""
        count = dropped - self._reported
        if count <= 0:
            return
        self._reported = dropped
        message = "lines of the log were dropped, because nothing read standard error"
        record = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": message, "lines": count}
        lines.append(self._encoded(logging.makeLogRecord(record)))

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
