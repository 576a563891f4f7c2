"""A command with stderr on a terminal, as an operator sees it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Self

from eventually import DEADLINE_S, eventually

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs `dra-agent` with these arguments until it exits; `interactive`: it reads from the terminal too."""

    def __init__(self, *words: str, environment: Mapping[str, str] | None = None, interactive: bool = False) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the block)
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dra_agent", *words],
            stdin=slave if interactive else subprocess.DEVNULL,
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
        self._process.wait(60)
        self._thread.join(60)
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
        """Return everything that the terminal has displayed, without colors and cursor movements."""
        return _CONTROL.sub("", bytes(self._seen).decode(errors="replace"))

    def type(self, text: str) -> None:
        """Type at the terminal."""
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str) -> None:
        """Wait until the terminal has displayed the pattern."""

        def is_shown() -> bool:
            found = re.search(pattern, self.shown) is not None
            assert found or self._process.poll() is None, f"ended without {pattern!r}: {self.shown[-2000:]}"
            return found

        eventually(is_shown, lambda: f"no {pattern!r}: {self.shown[-2000:]}")

    def end(self, timeout_s: float = DEADLINE_S) -> tuple[int, str]:
        """Wait until the command exits, and return its exit code and standard output."""
        code = self._process.wait(timeout_s)
        self._out.seek(0)
        return code, self._out.read().decode()
