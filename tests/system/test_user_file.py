"""Files named by a user are regular files of limited size; everything else is refused at once."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from dra_agent import user_file


def test_a_regular_file_is_read_through_symlinks(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "config.toml").write_bytes(b"x = 1\n")
    (tmp_path / "config.toml").symlink_to("..data/config.toml")
    assert user_file.read(tmp_path / "config.toml", 6) == b"x = 1\n"
    assert user_file.read(str(tmp_path / "config.toml"), 100) == b"x = 1\n"


def test_other_file_types_are_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path, code, reason in (
            (tmp_path / "fifo", errno.EINVAL, "Is a FIFO, not a regular file"),
            (tmp_path, errno.EISDIR, "Is a directory, not a regular file"),
            (Path("/dev/zero"), errno.EINVAL, "Is a device, not a regular file"),
            (tmp_path / "socket", errno.ENXIO, "No such device"),
            (tmp_path / "missing", errno.ENOENT, "No such file"),
        ):
            with pytest.raises(OSError, match=reason) as raised:
                user_file.read(path, 100)
            assert raised.value.errno == code
            assert raised.value.filename == str(path) or raised.value.filename == path


def test_a_file_above_the_limit_is_refused_also_without_a_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(OSError, match="Larger than 4 bytes"):
        user_file.read(tmp_path / "file", 4)
    assert len(user_file.read("/proc/self/status", 1 << 20)) > 4
    with pytest.raises(OSError, match="Larger than 4 bytes"):
        user_file.read("/proc/self/status", 4)  # its size is 0 to stat(2)
    with pytest.raises(OSError, match="Larger than 1 MiB"):
        (tmp_path / "file").write_bytes(b"x" * ((1 << 20) + 1))
        user_file.read(tmp_path / "file", 1 << 20)


READ = "import sys; from dra_agent import user_file; sys.stdout.buffer.write({call})"
CALLS = {
    "standard input": "user_file.read_standard_input(100)",
    "/dev/stdin": "user_file.read('/dev/stdin', 100)",
    "/dev/fd/0": "user_file.read('/dev/fd/0', 100)",
    "/proc/self/fd/0": "user_file.read('/proc/self/fd/0', 100)",
}


def reader(
    call: str, *, stdin: IO[bytes] | None = None, input: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", READ.format(call=call)]
    return subprocess.run(command, capture_output=True, check=False, stdin=stdin, input=input)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_pipes_of_the_caller_are_read_to_their_end(call: str, tmp_path: Path) -> None:
    assert reader(call, input=b"claim").stdout == b"claim"
    assert b"Larger than 100 bytes" in reader(call, input=b"x" * 200_000).stderr
    (tmp_path / "file").write_bytes(b"a file")
    with (tmp_path / "file").open("rb") as file:
        assert reader(call, stdin=file).stdout == b"a file"


def test_a_nonblocking_pipe_is_awaited() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    command = [sys.executable, "-c", READ.format(call=CALLS["standard input"])]
    with subprocess.Popen(command, stdin=read_end, stdout=subprocess.PIPE) as process:
        os.close(read_end)
        os.write(write_end, b"one ")
        os.write(write_end, b"two")
        os.close(write_end)
        assert process.communicate()[0] == b"one two"


def test_closed_standard_input_is_an_error() -> None:
    command = f'exec {sys.executable} -c "{READ.format(call=CALLS["standard input"])}" <&-'
    result = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    assert b"standard input is closed" in result.stderr
