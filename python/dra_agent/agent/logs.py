"""The agent's log: one line for each event, as text or as JSON.

Modules log with the standard library; fields (claim, device) come through `extra`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any

from dra_agent.agent.log_writer import LogWriter
from dra_agent.printable import json_printable, printable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# sd-daemon(3): a line with the prefix <N> has that priority in the journal.
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


def set_up(level: str, format_: str) -> None:
    """Write log records of at least `level` to standard error.

    The first call starts the thread that writes, and raises NoThreadError if there is no room for it.
    """
    root = logging.getLogger()
    handler = next((one for one in root.handlers if isinstance(one, LogWriter)), None)
    if handler is None:
        handler = LogWriter(os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno())
    # Set by systemd if standard error is the journal, which records time and priority.
    journal = "JOURNAL_STREAM" in os.environ
    handler.setFormatter((JsonFormatter if format_ == "json" else TextFormatter)(journal=journal))
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dra_agent").setLevel(level.upper())
    logging.captureWarnings(True)
    # A closed standard error must not end up as a traceback for every event.
    logging.raiseExceptions = False


def flush() -> None:
    """Wait for a limited time until everything is written that was logged."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def dropped_lines() -> int:
    """Return the number of lines that were not written since the start, because nothing read them."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))


def write(logger: logging.Logger, severity: int, message: str, extra: dict[str, object], *, level: str) -> None:
    """Log a record if `level` includes its severity, independent of the level of the log."""
    if severity >= logging.getLevelNamesMapping()[level.upper()]:
        logger.handle(logger.makeRecord(logger.name, severity, "", 0, message, (), None, extra=extra))


def fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that were passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


_QUOTED = re.compile(r'[ "=\n\t]')


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info claim prepared claim=1f2e devices=gpu-0000-3b-00-0`."""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Write one event; a traceback, which only a defect has, goes below it."""
        extra = "".join(f" {name}={_text(value)}" for name, value in fields(record).items())
        message = printable(record.getMessage(), line=True)
        if self._journal:
            line = f"{_prefix(record)}{message}{extra}"
        else:
            line = f"{_time(record)} {record.levelname.lower()} {message}{extra}"
        return f"{line}\n{printable(self.formatException(record.exc_info))}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object on one line: time, level, logger, message, and the event's fields."""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Write one event."""
        event = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        line = json_printable(json.dumps(event, ensure_ascii=False, default=str))
        # journald removes the prefix; without it, every line would have the priority of an information.
        return f"{_prefix(record)}{line}" if self._journal else line


def _prefix(record: logging.LogRecord) -> str:
    return f"<{_PRIORITY.get(record.levelno, 6)}>"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: Any) -> str:
    many = isinstance(value, list | tuple | set | frozenset)
    text = ",".join(str(item) for item in value) if many else str(value)
    return printable(json.dumps(text, ensure_ascii=False) if text == "" or _QUOTED.search(text) else text, line=True)
