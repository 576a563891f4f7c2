"""Starts the MPS control daemon of one GPU and sends commands to it.

The commands are those of nvidia-cuda-mps-control(1). The daemon sees only one GPU, which is therefore device 0.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.child import Child
from dra_agent.command import CompletedCommand, HostCommand
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json
from dra_agent.processes.stat import read_stat

_log = logging.getLogger(__name__)

MULTI_USER = "-multiuser-server"
"""Lets clients of all users share one server, which runs as root. Without it, a client of another user waits until all
clients of the server's user have ended (docs.nvidia.com/deploy/mps, architecture). It needs root, Volta or newer, and
does not exist on Tegra."""
COMMAND_TIMEOUT_S = 10.0
"""Seconds for one command."""
QUIT_TIMEOUT_S = 10.0
"""Maximum seconds for a daemon to quit before it is killed; its clients have exited by then."""
_HINT = "check the MPS logs, in the folder next to its pipes"
_MAX_SERVERS = 64
"""Maximum servers of one daemon that receive a limit. It has one for each user, and a container can forge the list."""
_MAX_RECORD_BYTES = 4096


class Daemon(msgspec.Struct, frozen=True):
    """A running daemon, as the launcher reported it; stored below the state directory, where no container can write."""

    pid: int
    started: int
    """Clock ticks since boot: distinguishes it from another process with the same PID."""


class MpsDaemon:
    """The daemon of one GPU; the caller holds the lock of the GPU."""

    def __init__(
        self,
        program: Path,
        place: MpsPaths,
        uuid: str,
        *,
        own_shm: bool,
        proc: Path,
        deadline: float = COMMAND_TIMEOUT_S,
        driver_environment: Mapping[str, str] | None = None,
    ) -> None:
        """`own_shm`: mount a private /dev/shm for it, which requires the permission to mount.

        `driver_environment`: with it, the program finds the libraries of its driver.
        """
        self._path = program
        self._paths = place
        self._proc = proc
        self._own_shm = own_shm
        environment = {
            **(driver_environment or {}),
            "CUDA_MPS_PIPE_DIRECTORY": str(place.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(place.log),
            "CUDA_VISIBLE_DEVICES": uuid,
        }
        self._tool = HostCommand(program, deadline, hint=_HINT, environment=environment)
        self._launcher = Child("dra_agent.device_setup.mps.launch", deadline, hint=_HINT, environment=environment)

    def is_alive(self) -> bool:
        """Return whether a daemon runs; RetryableError if that is unknown, because it hangs for example."""
        return self._run("get_server_list").status == 0

    def start(self) -> None:
        """Start the daemon; RetryableError if it does not start."""
        shm = str(self._paths.shm) if self._own_shm else "-"
        log = str(self._paths.log / "start.log")
        command = [shm, log, str(self._path.absolute()), "-d"]
        done = self._launcher.run([*command, MULTI_USER])
        if done.status != 0:
            # The first version with the option is not documented.
            reason, done = done.last_line, self._launcher.run(command)
            if done.status == 0:
                _log.warning(
                    "the MPS daemon serves one user at a time: clients of other users wait until all others have ended",
                    extra={"gpu": self._paths.log.parent.name, "reason": reason},
                )
        if done.status != 0:
            raise self._tool.error(f"does not start: {done.last_line} (exit status {done.status})")
        self._record(done.output)
        if not self.is_alive():
            raise self._tool.error("was started and does not respond")

    def limit(self, memory_mib: int) -> None:
        """Set the limit of clients that request none, or a higher one."""
        self._run_checked(f"set_default_device_pinned_mem_limit 0 {memory_mib}M")
        servers = self._run("get_server_list").output.decode(errors="replace").split()
        for server in servers[:_MAX_SERVERS]:
            # The default applies to later servers. A server that has exited rejects it, which is not a failure.
            if server.isascii() and server.isdecimal():
                self._run(f"set_device_pinned_mem_limit {server} 0 {memory_mib}M")

    def quit(self) -> None:
        """Stop the daemon and its servers; succeeds if there is none."""
        daemon = self._daemon()
        with suppress(RetryableError):
            self._run("quit")
        if daemon is not None:
            self._wait(daemon)
        atomic_file.remove(self._paths.record)

    def _wait(self, daemon: Daemon) -> None:
        """Wait until a daemon has exited, and kill it if it does not."""
        try:
            handle = os.pidfd_open(daemon.pid)
        except OSError:
            return
        try:
            end = time.monotonic() + QUIT_TIMEOUT_S
            while self._is_running(daemon):
                if time.monotonic() > end:
                    # Through the pidfd, which belongs to the process that was just identified as the daemon.
                    with suppress(OSError):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return
                time.sleep(0.02)
        finally:
            os.close(handle)

    def _run_checked(self, command: str) -> None:
        done = self._run(command)
        if done.status != 0:
            raise self._tool.error(f"{command}: {done.last_line} (exit status {done.status})")

    def _run(self, command: str) -> CompletedCommand:
        return self._tool.run([], stdin=f"{command}\n".encode())

    def _record(self, reported: bytes) -> None:
        """Record the process of the daemon, so that it can be killed if it does not quit."""
        try:
            daemon = decode_json(reported, type=Daemon)
        except msgspec.DecodeError:
            return
        try:
            atomic_file.write(self._paths.record, msgspec.json.encode(daemon), durable=True)
        except OSError as error:
            raise RetryableError(f"cannot be written: {error.strerror}", where=str(self._paths.record)) from error

    def _daemon(self) -> Daemon | None:
        try:
            return decode_json(atomic_file.read(self._paths.record, _MAX_RECORD_BYTES), type=Daemon)
        except (OSError, msgspec.DecodeError):
            return None

    def _is_running(self, daemon: Daemon) -> bool:
        """Return whether it is still running: another process may have its PID."""
        try:
            stat = read_stat(daemon.pid, self._proc)
        except (OSError, ValueError):
            return False
        return stat is not None and not stat.has_ended and stat.started == daemon.started
