"""Becomes the MPS control program, with the GPU's own /dev/shm in a mount namespace of its own.

A child of the agent, with the arguments SHM LOG PROGRAM [ARGUMENT...]; SHM of "-" leaves /dev/shm as it is. What
the program says goes to LOG: a daemon keeps its outputs, and who waits for the end of a pipe would wait for its end.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


def main(shm: str, log: str, program: str, *arguments: str) -> None:
    """Replace this process; raises OSError where that cannot be."""
    if shm != "-":
        _mount(shm)
    # Readable by root only: MPS logs command lines and users.
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # The usual one, which the program expects: the agent's keeps everybody else out, clients too.
    os.umask(0o022)
    os.execv(program, [program, *arguments])  # noqa: S606 - no shell is meant


def _mount(shm: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def made(result: int, what: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    made(libc.unshare(_CLONE_NEWNS), "a mount namespace of its own")
    # What is mounted here must not be seen by anybody else.
    made(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "making mounts private")
    made(libc.mount(os.fsencode(shm), b"/dev/shm", None, _MS_BIND, None), "mounting /dev/shm")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"{error.strerror or error}")
