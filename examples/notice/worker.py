"""A Python job that follows the notice file: it saves its progress more often during a hint, and exits at a notice.

    python worker.py CHECKPOINT STEPS [SECONDS_PER_STEP]

It needs the standard library only. `NoticeFile` can be copied into any program.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


class NoticeFile:
    """The notice of this container. Without a notice file the phase is always `none`."""

    def __init__(self, directory: str | None = os.environ.get("DRA_AGENT_NOTICE_DIR")) -> None:
        self._path = None if directory is None else Path(directory) / "notice.json"
        self._seen: tuple[int, int] | None = None
        self.document: dict[str, Any] = {"phase": "none", "advice": []}

    def read(self) -> dict[str, Any]:
        """Return the current document. A poll costs one stat(2): the agent replaces the file, so its inode changes."""
        if self._path is not None:
            try:
                status = self._path.stat()
                if (status.st_ino, status.st_mtime_ns) != self._seen:
                    self.document = json.loads(self._path.read_text())
                    self._seen = (status.st_ino, status.st_mtime_ns)
            except OSError:
                pass  # the claim was released: the last document stays valid
        return self.document


def main(checkpoint: Path, steps: int, seconds: float) -> int:
    """Run the job from its checkpoint; exit code 0 also if it stops at a notice."""
    notice, terminated = NoticeFile(), False

    def terminate(number: int, frame: object) -> None:
        nonlocal terminated
        terminated = True

    signal.signal(signal.SIGTERM, terminate)
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"starts at step {step}", flush=True)
    while step < steps:
        time.sleep(seconds)  # the work of one step
        step += 1
        advice = notice.read()["advice"]
        if "exit" in advice or terminated:
            save(checkpoint, step)
            print(f"saved step {step} and exits, before {notice.document.get('deadline', 'an unknown time')}")
            return 0
        if step % (10 if "checkpoint" in advice else 100) == 0:
            save(checkpoint, step)
    save(checkpoint, step)
    print("finished")
    return 0


def save(checkpoint: Path, step: int) -> None:
    """Replace the checkpoint; a kill leaves the previous one."""
    new = checkpoint.with_suffix(".new")
    new.write_text(str(step))
    new.rename(checkpoint)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 1.0))
