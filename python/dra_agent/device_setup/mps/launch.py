"""Starts the MPS control program, with the GPU's own /dev/shm in a private mount namespace, and reports its daemon.

It is a child process of the agent, with the arguments SHM LOG PROGRAM [ARGUMENT...]; SHM "-" leaves /dev/shm unchanged.
The output of the program is written to LOG: a daemon keeps its outputs open, so a reader of a pipe would wait until it
exits.

The response is one line of JSON, `{"pid": 4711, "started": 12345}`: the process that the program left running, and its
start time in clock ticks since boot. The daemon's own pidfile is in the directory of the pipes, where containers can
write.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from dra_agent.processes.stat import process_ids, read_stat

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_CHILD_SUBREAPER = 36


def main(shm: str, log: str, program: str, *arguments: str) -> int:
    """Run the program and report its daemon; return its exit status. Raises OSError if it cannot be run."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Processes that the program leaves running become children of this process, and are found as such.
    _check(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1), "adopting the daemon")
    if shm != "-":
        _mount(libc, shm)
    # Readable by root only: MPS logs command lines and users.
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    child = os.fork()
    if child == 0:
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The usual umask, which the program expects: the agent's excludes all other users, and so clients.
        os.umask(0o022)
        try:
            os.execv(program, [program, *arguments])  # noqa: S606 - no shell is meant
        except OSError as error:
            os.write(2, f"{program}: {error.strerror}\n".encode())
            os._exit(127)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        for pid, started in _children():
            print(json.dumps({"pid": pid, "started": started}))
            break
    else:
        print(_last_line(log), file=sys.stderr)
    return status if status >= 0 else 128 - status


def _children() -> list[tuple[int, int]]:
    """Return the child processes of this process, the oldest first."""
    found = []
    for pid in process_ids():
        try:
            stat = read_stat(pid)
        except (OSError, ValueError):
            continue
        if stat is not None and stat.parent == os.getpid() and not stat.has_ended:
            found.append((pid, stat.started))
    return sorted(found, key=lambda one: one[1])


def _last_line(log: str) -> str:
    """Return the last line of the program's log: the reason of a failed start."""
    with Path(log).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def _mount(libc: ctypes.CDLL, shm: str) -> None:
    _check(libc.unshare(_CLONE_NEWNS), "a new mount namespace")
    # Mounts made here must not be visible to other processes.
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "making mounts private")
    _check(libc.mount(os.fsencode(shm), b"/dev/shm", None, _MS_BIND, None), "mounting /dev/shm")


def _check(result: int, message: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{message}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except OSError as error:
        sys.exit(f"{error.strerror or error}")
