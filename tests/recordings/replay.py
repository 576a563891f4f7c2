"""Strict replay of NVML: the recorded responses, and no other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_agent.nvml.client import worker_program


@contextmanager
def replay(recording: Path) -> Iterator[list[str]]:
    """Replay until the context ends; the list then has the calls that the recording does not have."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        misses = Path(folder) / "misses"
        with worker_program("dra_agent.nvml.replay_worker", str(recording / "nvml.jsonl"), str(misses)):
            yield found
        if misses.exists():
            found += misses.read_text().splitlines()
