"""Whether the objects of standalone mode are whole, and what the agent set aside; and an agent that does not listen.

Files in use are never opened: the store is read from a copy, and the lock is looked up, not tried.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning


def check(examination: CheckContext) -> Iterator[Finding]:
    """Look at damaged files that were set aside, at the agent's lock and at the store."""
    directory = examination.state_dir
    for path in sorted(directory.glob("*.corrupt-*")):
        yield warning(
            "a damaged file that was set aside; what was sound in it was kept",
            str(path),
            "see whether claims are missing (`dra-agent claims`) and whether the disk fails (dmesg); then move it away",
        )
    holder = lock_holder(directory / examination.lock_name, examination.locks)
    if holder is not None:
        if not (directory / examination.socket_name).exists():
            yield problem(
                f"an agent (pid {holder}) holds the state directory and does not listen",
                str(directory),
                "it may still be starting: look again; else read its log (journalctl -u dra-agent) and restart it",
            )
        return  # it checks the store itself, and a copy could be half of a change
    if (directory / examination.lock_name).exists() and not _answers(directory, examination):
        yield problem(
            "no agent runs here, and one did: nothing is prepared or released",
            str(directory),
            "read why it ended (journalctl -u dra-agent), and start it (systemctl start dra-agent)",
        )
    store = directory / examination.store_name
    if store.exists():
        yield _verdict(store)


def _answers(directory: Path, examination: CheckContext) -> bool:
    """Whether somebody listens on a socket of the agent; one of another process namespace has no lock that is seen."""
    for name in (examination.socket_name, examination.trigger_name):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1.0)
            try:
                asking.connect(str(directory / name))
            except PermissionError:
                return True
            except OSError:
                continue
            return True
    return False


def lock_holder(lock: Path, locks: Path) -> int | None:
    """Give the pid of the agent that holds the lock; None where nobody does.

    To try a lock is to take it for a moment, which could keep an agent from starting. The kernel lists all of them
    (proc_locks(5)); device numbers there differ from stat's on some file systems, so pid and inode are compared.
    """
    try:
        pid, inode = lock.read_text(errors="replace").strip(), lock.stat().st_ino
        lines = locks.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for fields in (line.split() for line in lines):
        if fields[1:2] == ["FLOCK"] and len(fields) > 5 and fields[4] == pid and fields[5].endswith(f":{inode}"):
            return int(pid)
    return None


def _verdict(store: Path) -> Finding:
    try:
        with tempfile.TemporaryDirectory(prefix="dra-agent-doctor-") as directory:
            for path in (store, store.with_name(f"{store.name}-wal")):
                if path.exists():
                    shutil.copyfile(path, Path(directory) / path.name)
            with closing(sqlite3.connect(Path(directory) / store.name)) as connection:
                (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        said = str(error)
    except OSError as error:
        return problem(f"cannot be read: {error.strerror}", str(store), "run the doctor as root")
    if said == "ok":
        return ok("the stored claims are whole", str(store))
    hint = "start the agent: it keeps what is sound and sets the file aside; then apply missing claims again"
    return problem(f"the stored claims are damaged: {said}", str(store), hint)
