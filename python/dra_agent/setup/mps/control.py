"""The MPS control program, for one GPU: starts its daemon and speaks to it.

Commands and their forms are those of nvidia-cuda-mps-control(1). The daemon sees one GPU, so that it is device 0.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from dra_agent.child import Child
from dra_agent.errors import RetryableError
from dra_agent.program import Finished, Program
from dra_agent.setup.mps.place import Place

DEADLINE = 10.0
"""Seconds for one command."""
_ENDING = 10.0
"""Seconds that a daemon may take to quit before it is killed; its clients have ended by then."""
_TODO = "see the logs of MPS beside its pipes"
_PIDFILE = "nvidia-cuda-mps-control.pid"


class Control:
    """One GPU's daemon; whoever calls holds the GPU's lock."""

    def __init__(
        self, program: Path, place: Place, uuid: str, *, own_shm: bool, proc: Path, deadline: float = DEADLINE
    ) -> None:
        """`own_shm`: give it a /dev/shm of its own, which takes the right to mount."""
        self._path = program
        self._place = place
        self._proc = proc
        self._own_shm = own_shm
        environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(place.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(place.log),
            "CUDA_VISIBLE_DEVICES": uuid,
        }
        self._tool = Program(program, deadline, todo=_TODO, environment=environment)
        self._launcher = Child("dra_agent.setup.mps.launch", deadline, todo=_TODO, environment=environment)

    def answers(self) -> bool:
        """Tell whether a daemon is there; RetryableError where that is not known, as from one that hangs."""
        return self._ask("get_server_list").status == 0

    def start(self) -> None:
        """Start the daemon; RetryableError where it does not come up."""
        shm = str(self._place.shm) if self._own_shm else "-"
        log = str(self._place.log / "start.log")
        done = self._launcher.run([shm, log, str(self._path.absolute()), "-d"])
        if done.status != 0:
            raise self._tool.error(f"does not start: {done.last_words} (exit status {done.status})")
        if not self.answers():
            raise self._tool.error("was started and does not answer")

    def limit(self, memory_mib: int) -> None:
        """Set what a client may have that asks for no limit, or for a higher one."""
        self._told(f"set_default_device_pinned_mem_limit 0 {memory_mib}M")
        servers = self._ask("get_server_list").output.decode(errors="replace").split()
        for server in servers:
            # The default is for servers to come. One that ended meanwhile refuses, and is not missed.
            if server.isdecimal():
                self._ask(f"set_device_pinned_mem_limit {server} 0 {memory_mib}M")

    def quit(self) -> None:
        """End the daemon and its servers; nothing to end is success."""
        pid = self._pid()
        with suppress(RetryableError):
            self._ask("quit")
        end = time.monotonic() + _ENDING
        while pid is not None and self._is_daemon(pid):
            if time.monotonic() > end:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.02)

    def _told(self, command: str) -> None:
        done = self._ask(command)
        if done.status != 0:
            raise self._tool.error(f"{command}: {done.last_words} (exit status {done.status})")

    def _ask(self, command: str) -> Finished:
        return self._tool.run([], given=f"{command}\n".encode())

    def _pid(self) -> int | None:
        try:
            text = (self._place.pipe / _PIDFILE).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return int(text) if text.isdecimal() and int(text) > 1 else None

    def _is_daemon(self, pid: int) -> bool:
        """Tell whether a process is this GPU's daemon: the number in an old file may be anybody's by now."""
        try:
            folder = self._proc / str(pid)
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            return False
        return state != "Z" and f"CUDA_MPS_PIPE_DIRECTORY={self._place.pipe}".encode() in environment
