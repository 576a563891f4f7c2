"""The MPS control program, for one GPU: starts its daemon and speaks to it.

Commands and their forms are those of nvidia-cuda-mps-control(1). The daemon sees one GPU, so that it is device 0.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.child import Child
from dra_agent.command import CompletedCommand, HostCommand
from dra_agent.device_setup.mps.launch import stat_of
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.errors import RetryableError

DEADLINE = 10.0
"""Seconds for one command."""
_ENDING = 10.0
"""Seconds that a daemon may take to quit before it is killed; its clients have ended by then."""
_TODO = "see the logs of MPS beside its pipes"
_MAX_SERVERS = 64
"""Servers of one daemon that are told of a limit. It has one for each user; the answer can be a container's."""
_MAX_RECORD_BYTES = 4096
_STARTED = 21
"""Position in /proc/PID/stat, from 0."""


class Daemon(msgspec.Struct, frozen=True):
    """A running daemon, as the launcher reported it; kept below the state directory, where no container writes."""

    pid: int
    started: int
    """Clock ticks since boot: tells it from another process that has its number."""


class MpsDaemon:
    """One GPU's daemon; whoever calls holds the GPU's lock."""

    def __init__(
        self, program: Path, place: MpsPaths, uuid: str, *, own_shm: bool, proc: Path, deadline: float = DEADLINE
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
        self._tool = HostCommand(program, deadline, hint=_TODO, environment=environment)
        self._launcher = Child("dra_agent.device_setup.mps.launch", deadline, hint=_TODO, environment=environment)

    def is_alive(self) -> bool:
        """Tell whether a daemon is there; RetryableError where that is not known, as from one that hangs."""
        return self._ask("get_server_list").status == 0

    def start(self) -> None:
        """Start the daemon; RetryableError where it does not come up."""
        shm = str(self._place.shm) if self._own_shm else "-"
        log = str(self._place.log / "start.log")
        done = self._launcher.run([shm, log, str(self._path.absolute()), "-d"])
        if done.status != 0:
            raise self._tool.error(f"does not start: {done.last_line} (exit status {done.status})")
        self._record(done.output)
        if not self.is_alive():
            raise self._tool.error("was started and does not answer")

    def limit(self, memory_mib: int) -> None:
        """Set what a client may have that asks for no limit, or for a higher one."""
        self._told(f"set_default_device_pinned_mem_limit 0 {memory_mib}M")
        servers = self._ask("get_server_list").output.decode(errors="replace").split()
        for server in servers[:_MAX_SERVERS]:
            # The default is for servers to come. One that ended meanwhile refuses, and is not missed.
            if server.isascii() and server.isdecimal():
                self._ask(f"set_device_pinned_mem_limit {server} 0 {memory_mib}M")

    def quit(self) -> None:
        """End the daemon and its servers; nothing to end is success."""
        daemon = self._daemon()
        with suppress(RetryableError):
            self._ask("quit")
        if daemon is not None:
            self._wait(daemon)
        atomic_file.remove(self._place.record)

    def _wait(self, daemon: Daemon) -> None:
        """Wait until a daemon has ended, and kill one that does not."""
        try:
            handle = os.pidfd_open(daemon.pid)
        except OSError:
            return
        try:
            end = time.monotonic() + _ENDING
            while self._is_running(daemon):
                if time.monotonic() > end:
                    # By the handle, which is of the process that was just seen to be the daemon.
                    with suppress(OSError):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return
                time.sleep(0.02)
        finally:
            os.close(handle)

    def _told(self, command: str) -> None:
        done = self._ask(command)
        if done.status != 0:
            raise self._tool.error(f"{command}: {done.last_line} (exit status {done.status})")

    def _ask(self, command: str) -> CompletedCommand:
        return self._tool.run([], given=f"{command}\n".encode())

    def _record(self, reported: bytes) -> None:
        """Keep which process the daemon is; one that reports nothing cannot be killed later, only told to quit."""
        try:
            daemon = msgspec.json.decode(reported, type=Daemon)
        except msgspec.DecodeError:
            return
        try:
            atomic_file.write(self._place.record, msgspec.json.encode(daemon), durable=True)
        except OSError as error:
            raise RetryableError(f"cannot be written: {error.strerror}", where=str(self._place.record)) from error

    def _daemon(self) -> Daemon | None:
        try:
            return msgspec.json.decode(atomic_file.read(self._place.record, _MAX_RECORD_BYTES), type=Daemon)
        except (OSError, msgspec.DecodeError):
            return None

    def _is_running(self, daemon: Daemon) -> bool:
        """Return whether it is there still: another process may have its number by now."""
        try:
            fields = stat_of(daemon.pid, self._proc)
            return fields is not None and fields[2] != "Z" and int(fields[_STARTED]) == daemon.started
        except (OSError, IndexError, ValueError):
            return False
