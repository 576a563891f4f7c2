"""What a test leaves fails the test; what a fixture of the session starts stays until the end of the session."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "infinity"]) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("test", [1, 2])
def test_a_process_of_the_session_outlives_a_test(test: int, process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None, f"it was killed before test {test}"
