"""Whether the agent may do what it must: who runs it, and who can reach its socket."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look at the user and at the socket."""
    if examination.user == 0:
        yield ok("runs as root")
    else:
        yield warning(
            f"runs as user {examination.user}, who may not see or change everything",
            "user",
            "run it as root, as the service does",
        )
    path = examination.state_dir / examination.socket_name
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        yield warning(f"cannot be looked at: {error.strerror}", str(path), "run the doctor as root")
        return
    yield from _socket(path, mode)


def _socket(path: Path, mode: int) -> Iterator[Finding]:
    if not stat.S_ISSOCK(mode):
        yield problem("is no socket", str(path), "remove it, and restart the agent")
        return
    if mode & 0o077:
        yield problem(
            f"others than its owner can reach it (mode {stat.S_IMODE(mode):o})", str(path), f"chmod 600 {path}"
        )
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2.0)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            yield warning("no agent listens there", str(path), "start the agent; it takes the place of the old socket")
        except OSError as error:
            yield warning(f"cannot be reached: {error.strerror or error}", str(path), "run the doctor as root")
        else:
            yield ok("the agent listens", str(path))
