"""A command whose errors go to a terminal, as for a person who looks at it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Self

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs `dra-agent` with these words until it ends."""

    def __init__(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the block)
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dra_agent", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160", **(environment or {})},
        )
        os.close(slave)
        self._seen = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        self._thread.join(10)
        os.close(self._master)
        self._out.close()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return  # the other end is closed
            self._seen += data

    @property
    def shown(self) -> str:
        """Everything that was ever on the terminal, without colours and movements."""
        return _CONTROL.sub("", bytes(self._seen).decode(errors="replace"))

    def wait_for(self, pattern: str, at_most: float = 20.0) -> None:
        """Wait until it was shown."""
        end = time.monotonic() + at_most
        while not re.search(pattern, self.shown):
            assert time.monotonic() < end and self._process.poll() is None, f"no {pattern!r}: {self.shown[-2000:]}"
            time.sleep(0.05)

    def end(self, at_most: float = 30.0) -> tuple[int, str]:
        """Wait until it ends; its exit code, and what it printed."""
        code = self._process.wait(at_most)
        self._out.seek(0)
        return code, self._out.read().decode()
