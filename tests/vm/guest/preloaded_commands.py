"""Keeps a process that forks `dra-agent` commands (tests/preloaded), because imports take seconds under emulation."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import preloaded

if __name__ == "__main__":
    Path(sys.argv[1]).symlink_to(preloaded.program_folder())
    signal.pause()
