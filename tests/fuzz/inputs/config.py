"""Configuration files: any bytes are either a configuration or one error that names the file."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from dra_agent.agent.config import Config, load_config
from dra_agent.errors import UsageError

_FOLDER = Path(tempfile.mkdtemp(prefix="dra-fuzz-"))
_FILE = _FOLDER / f"{os.getpid()}.toml"
MAX_MESSAGE_LENGTH = 8192


def check(data: bytes) -> None:
    """Read a file twice: the configuration or the error must be the same."""
    _FILE.write_bytes(data)
    first, second = _read(), _read()
    assert first == second, f"{first} and then {second}"
    if isinstance(first, str):
        assert str(_FILE) in first or "configuration" in first, f"the error does not name the file: {first!r}"
        assert len(first) <= MAX_MESSAGE_LENGTH, f"an error of {len(first)} characters"


def _read() -> Config | str:
    try:
        return load_config(argparse.Namespace(config=_FILE), {})
    except UsageError as error:
        assert error.message, "an error without a message"
        return str(error)
