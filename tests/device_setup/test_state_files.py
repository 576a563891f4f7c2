"""The state that a set-up writes before a change, which it must be able to read after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.device_setup.state_files import StateFiles
from dra_agent.errors import RetryableError


def test_a_state_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, list[str], max_bytes=100)
    files.write("device", ["x" * 96])
    with pytest.raises(RetryableError, match="cannot be written: 101 bytes, and at most 100 could be read"):
        files.write("device", ["x" * 97])
    assert files.read("device") == ["x" * 96]
