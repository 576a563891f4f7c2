"""The log records of one part of the product, without those of other parts of the process."""

from __future__ import annotations

import logging

import pytest


def logged_by(caplog: pytest.LogCaptureFixture, module: str, *, least: int = logging.NOTSET) -> list[logging.LogRecord]:
    """Return the records of a module and its submodules, from the level `least` up."""
    return [
        record for record in caplog.records if f"{record.name}.".startswith(f"{module}.") and record.levelno >= least
    ]
