"""What one part of the product logs, whoever else logs in the same process meanwhile."""

from __future__ import annotations

import logging

import pytest


def logged_by(caplog: pytest.LogCaptureFixture, module: str, *, least: int = logging.NOTSET) -> list[logging.LogRecord]:
    """Give the records of a module and of the modules below it, from the level `least` up."""
    return [
        record for record in caplog.records if f"{record.name}.".startswith(f"{module}.") and record.levelno >= least
    ]
