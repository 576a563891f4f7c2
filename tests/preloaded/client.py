"""The program `dra-agent` in scripts: has the preloaded process fork the command, and ends as the fork does.

The first argument is the path of the socket. Only small modules are imported, because each command imports them again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run `dra-agent` with the arguments after the first; return its exit code."""
    status, theirs = os.pipe()
    request = {
        "module": None,
        "arguments": sys.argv[2:],
        "patch": "",
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109  # without pathlib
        "session": False,
        "fork_children": True,
        "files": [0, 1, 2],
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2, theirs])
        os.close(theirs)
        pid = int(server.recv(32))
        process = os.pidfd_open(pid)
    for forwarded in FORWARDED_SIGNALS:
        signal.signal(forwarded, lambda received, _: os.kill(pid, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    for number in (0, 1, 2):
        os.close(number)
    if not (text := os.read(status, 32)):
        # The preloaded process has ended before the command, whose status is lost. Signals still have to reach it.
        select.select([process], [], [])
        return 1
    code = os.waitstatus_to_exitcode(int(text))
    if code < 0:  # the caller receives the same status
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    os._exit(main())
