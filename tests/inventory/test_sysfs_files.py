"""Files of sysfs in every state that damaged trees have them in: no answer, and one message with the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.diagnostic import Diagnostic
from dra_agent.inventory.sysfs import SysfsDir


def missing(path: Path) -> None:
    pass


def empty(path: Path) -> None:
    path.touch()


def denied(path: Path) -> None:
    path.write_text("7")
    path.chmod(0)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def looped(path: Path) -> None:
    path.symlink_to(path)


def huge(path: Path) -> None:
    path.write_bytes(b"x" * (1 << 20))


def undecodable(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (missing, None),
        (empty, None),
        (denied, "Permission denied"),
        (fifo, "is not a regular file"),
        (folder, "is not a regular file"),
        (device, "is not a regular file"),
        (looped, "Too many levels of symbolic links"),
        (huge, "expected a number"),
        (undecodable, "expected a number"),
    ],
)
def test_a_damaged_file_is_reported_once_and_others_are_read(
    tmp_path: Path, make: Callable[[Path], None], message: str | None
) -> None:
    make(tmp_path / "mtu")
    (tmp_path / "speed").write_text("25000\n")
    problems: list[Diagnostic] = []
    files = SysfsDir(tmp_path, problems)
    assert (files.number("mtu"), files.number("speed")) == (None, 25000)
    assert [problem.where for problem in problems] == ([] if message is None else [str(tmp_path / "mtu")])
    assert message is None or problems[0].message.startswith(message)
