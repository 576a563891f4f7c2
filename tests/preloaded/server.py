"""The process that has imported the agent's modules: forks a child for each request until its socket is closed.

A request has descriptors for files of the child and one that receives the exit status. The reply is the pid. A child
that runs the agent's command has a socket for its own requests. Programs connect to the listening socket that the
second argument names (`client.py`).
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

MAX_REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 16
REQUESTS_FD = 200
"""The lowest number of a command's socket for requests: no test uses this number, and limits of files are higher."""
FORKED_MODULES = (
    "dra_agent.device_setup.rtnetlink",
    "dra_agent.device_setup.sysfs_writer",
    "dra_agent.nvml.recording_worker",
    "dra_agent.nvml.replay_worker",
    "dra_agent.nvml.worker",
    "dra_simulate.nvidia_smi_tool",
)
"""Modules of child processes that are forked: those that tests start most often."""
MODULES = (
    *FORKED_MODULES,
    "dra_agent.agent.agent",
    "dra_agent.agent.hook_server",
    "dra_agent.agent.kubernetes_mode",
    "dra_agent.agent.mps_supervisor",
    "dra_agent.agent.setup_registry",
    "dra_agent.agent.standalone_mode",
    "dra_agent.cdi.directory",
    "dra_agent.cdi.edits.nvidia",
    "dra_agent.cdi.edits.registry",
    "dra_agent.cdi.metadata",
    "dra_agent.cli.agent_config",
    "dra_agent.cli.agent_view",
    "dra_agent.cli.claim",
    "dra_agent.cli.claim_apply",
    "dra_agent.cli.claims",
    "dra_agent.cli.connection",
    "dra_agent.cli.devices",
    "dra_agent.cli.doctor",
    "dra_agent.cli.explain_standalone",
    "dra_agent.cli.reclaim",
    "dra_agent.cli.run",
    "dra_agent.cli.shown_host",
    "dra_cluster.cli.slices_template",
    "dra_agent.cli.topology",
    "dra_agent.device_setup.amd",
    "dra_agent.device_setup.mig",
    "dra_agent.device_setup.net",
    "dra_agent.device_setup.shares",
    "dra_agent.device_setup.timeslice",
    "dra_agent.device_setup.vfio",
    "dra_agent.inventory.amd",
    "dra_agent.inventory.nvidia.backend",
    "dra_agent.manifests",
    "dra_agent.metrics.registry",
    "dra_agent.prepare.ledger_reader",
    "dra_simulate",
    "dra_simulate.kernel",
    "dra_simulate.nvidia_smi_report",
    "dra_simulate.profiles.dgx_h100",
    "dra_simulate.profiles.vm_1gpu",
    "dra_agent.telemetry.control",
    "dra_agent.topology.tree",
    "preloaded.children",
    "pynvml",
    "pyroute2",
    "rich.console",
    "rich.table",
    "rich.tree",
    "yaml",
)
"""What agents and common commands import. No module of these starts a thread."""


RECORDED = "DRA_AGENT_MUTANTS_TRACE"
"""Set while mutants/ records which test runs which function. An interpreter reads it at its start, a fork here."""


class _Server:
    """Forks; `serve` returns in each child."""

    def __init__(self, requests: socket.socket, listening: socket.socket) -> None:
        self._first = requests
        self._listening = listening
        self._selector = selectors.PollSelector()
        for source in (requests, listening):
            self._selector.register(source, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, int]] = {}

    def serve(self) -> dict[str, Any] | None:
        """Fork until the other end is closed; returns the request in a child, and None in this process."""
        while True:
            for key, _ in self._selector.select():
                source = key.fileobj
                if not isinstance(source, socket.socket):
                    self._selector.unregister(source)
                    _report(*self._running.pop(key.fd), key.fd)
                    continue
                if source is self._listening:
                    self._selector.register(source.accept()[0], selectors.EVENT_READ)
                    continue
                try:
                    data, descriptors, _, _ = socket.recv_fds(source, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
                except ConnectionResetError:  # the command was killed before it read a reply
                    data = b""
                if data:
                    request: dict[str, Any] = json.loads(data)
                    if self._fork(source, request, descriptors):
                        return request
                elif source is self._first:
                    return None
                else:
                    self._selector.unregister(source)
                    source.close()

    def _fork(self, source: socket.socket, request: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Fork and reply; returns whether this process is the child."""
        *files, status = descriptors
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            # A shell that starts tests in the background makes its children ignore SIGINT.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Otherwise each object closes its number when it is freed, which may be another file by then.
            opened = [key.fileobj for key in self._selector.get_map().values()]
            for held in (ours, *opened):
                if isinstance(held, socket.socket):
                    held.detach()
            requests = theirs.detach()
            is_command = request["module"] is None
            request["requests"] = _take_files(
                dict(zip(request["files"], files, strict=True)), requests if is_command else None
            )
            return True
        for file in (*files, theirs.detach()):
            os.close(file)
        self._selector.register(ours, selectors.EVENT_READ)
        self._running[ended := os.pidfd_open(pid)] = (pid, status)
        self._selector.register(ended, selectors.EVENT_READ)
        with suppress(BrokenPipeError, ConnectionResetError):  # the command was killed after its request
            source.sendall(str(pid).encode())
        return False


def _take_files(files: dict[int, int], requests: int | None) -> int | None:
    """Open files under the given numbers and close all others; returns the number of the socket for requests."""
    above = max(*files, REQUESTS_FD)
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above + 1) for number, file in files.items()}
    if requests is not None:
        requests = fcntl.fcntl(requests, fcntl.F_DUPFD_CLOEXEC, above + 1)
    for number, file in moved.items():
        os.dup2(file, number)
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if number not in files and number != requests:
            with suppress(OSError):  # of the directory, which is closed already
                os.close(number)
    return requests


def _report(pid: int, status: int, ended: int) -> None:
    """Pass on the status of a child that has ended."""
    code = os.waitpid(pid, 0)[1]
    os.close(ended)
    try:
        os.write(status, str(code).encode())
    except BrokenPipeError:  # of a test that did not wait for it
        pass
    finally:
        os.close(status)


def main() -> int:
    """Import, serve, and run the command or module in each child."""
    requests, listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    sys.path.insert(1, os.path.dirname(sys.path[0]))  # noqa: PTH120
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    request = _Server(requests, listening).serve()
    if request is None:
        return 0
    recorded = os.environ.get(RECORDED)
    os.environ.clear()
    os.environ.update(request["environment"])
    if recorded:
        os.environ[RECORDED] = recorded
        importlib.import_module("mutants.tracing").trace_this_process()
    os.chdir(request["directory"])
    if request["session"]:
        os.setsid()
    sys.argv = [sys.argv[0], *request["arguments"]]
    code = _run_command(request) if request["module"] is None else _run_module(request["module"])
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - a forked child ends as the interpreter does, which has no public function for it
    atexit._run_exitfuncs()  # noqa: SLF001 - a forked child ends as the interpreter does, which has no public function for it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_command(request: dict[str, Any]) -> int:
    sys.path[0] = request["directory"]  # as `python -m` and `python -c` have it
    from preloaded.children import Requests, fork_children

    requests = Requests(socket.socket(fileno=request["requests"]))
    if request["fork_children"]:
        fork_children(requests.fork)
    if request["patch"]:
        exec(request["patch"], {"sys": sys})
    from dra_agent.cli.main import main as run

    return run()


def _run_module(module: str) -> int:
    warnings.simplefilter("ignore", RuntimeWarning)  # the module is imported already
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
