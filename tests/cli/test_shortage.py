"""A command for which the system lacks something ends with one message that says what, and what to do."""

from __future__ import annotations

import errno
import os

import pytest

from dra_agent.cli.main import exit_code


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "no room for another thread or process"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "no free file descriptor in this process"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "no free file descriptor on this host"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "no memory for this process"),
        (MemoryError(), "no memory for this process"),
    ],
    ids=["EAGAIN", "EMFILE", "ENFILE", "ENOMEM", "MemoryError"],
)
def test_a_shortage_is_one_message(error: BaseException, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise error

    assert exit_code(fail) == 1
    assert capsys.readouterr().err.startswith(f"dra-agent: {message}: raise ")
