"""Reads a ledger that an agent may have open, from a copy: opening one repairs it and locks others out."""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from dra_agent.errors import RetryableError
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry, LedgerReport
from dra_agent.presence import may_exist

MAX_TRIES = 5
RETRY_INTERVAL_S = 0.05
"""Seconds between tries: a journal that is being replaced by a snapshot is there again at once."""


def read_copy(state_dir: Path, boot_id: str = "") -> tuple[list[LedgerEntry], LedgerReport] | None:
    """Return the claims and the state of the ledger; None if it does not exist. Changes nothing.

    `boot_id` is that of the host; without it the report has all claims in `earlier_boot`.

    RetryableError where it cannot be read.
    """
    source = state_dir / "ledger"
    for attempt in range(MAX_TRIES):
        try:
            if not may_exist(source):
                return None
            return _read(source, boot_id)
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, PermissionError) or attempt + 1 == MAX_TRIES:
                raise RetryableError(f"cannot be read: {reason}", where=str(source), hint="try as root") from error
            time.sleep(RETRY_INTERVAL_S)
    raise AssertionError


def _read(source: Path, boot_id: str) -> tuple[list[LedgerEntry], LedgerReport]:
    with tempfile.TemporaryDirectory(prefix="dra-agent-ledger-") as directory:
        _copy(source, Path(directory) / "ledger")
        with JournalLedger(Path(directory), boot_id) as ledger:
            return ledger.entries(), ledger.report


def _copy(source: Path, target: Path) -> None:
    """Copy the files; raises OSError if they are replaced meanwhile."""
    target.mkdir()
    names = _names(source)
    with ExitStack() as opened:
        # All are opened before the first is read: an open journal stays whole when a snapshot replaces it.
        files = [(name, opened.enter_context((source / name).open("rb"))) for name in sorted(names)]
        # A directory that changes while it is listed may show neither a removed journal nor its snapshot (readdir(3)).
        if _names(source) != names:
            raise OSError(errno.EAGAIN, "its files are being replaced")
        for name, file in files:
            with (target / name).open("wb") as copy:
                shutil.copyfileobj(file, copy)


def _names(source: Path) -> set[str]:
    return {path.name for path in source.iterdir() if path.is_file()}
