"""The process that has imported the agent's modules: forks a child for each request until its socket is closed.

A request has three descriptors for the standard streams and one that receives the exit status. The reply is the pid.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import threading
from typing import Any

MAX_REQUEST_BYTES = 1 << 20
MODULES = (
    "dra_agent.agent.agent",
    "dra_agent.agent.hook_server",
    "dra_agent.agent.mps_supervisor",
    "dra_agent.agent.setup_registry",
    "dra_agent.agent.standalone_mode",
    "dra_agent.agent.webhook_runner",
    "dra_agent.cdi.directory",
    "dra_agent.cdi.edits.registry",
    "dra_agent.cdi.metadata",
    "dra_agent.cli.agent_view",
    "dra_agent.cli.claim",
    "dra_agent.cli.claims",
    "dra_agent.cli.connection",
    "dra_agent.cli.devices",
    "dra_agent.cli.reclaim",
    "dra_agent.cli.run",
    "dra_agent.cli.shown_host",
    "dra_agent.cli.webhook",
    "dra_agent.device_setup.shares",
    "dra_agent.manifests",
    "dra_agent.metrics.registry",
    "dra_agent.prepare.ledger_reader",
    "dra_agent.simulate",
    "pynvml",
    "rich.console",
    "rich.table",
    "yaml",
)
"""What an agent in standalone mode, the webhook and common commands import. No module of these starts a thread."""


RECORDED = "DRA_AGENT_MUTANTS_TRACE"
"""Set while mutants/ records which test runs which function. An interpreter reads it at its start, a fork here."""


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork until the other end is closed; returns the request in a child, and None in this process."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.PollSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fileobj)
                    _report(*running.pop(key.fd), key.fd)
                    continue
                data, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
                if not data:
                    return None
                *streams, status = descriptors
                pid = os.fork()
                if pid == 0:
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # noqa: PTH208
                    request: dict[str, Any] = json.loads(data)
                    return request
                for stream in streams:
                    os.close(stream)
                running[ended := os.pidfd_open(pid)] = (pid, status)
                selector.register(ended, selectors.EVENT_READ)
                requests.sendall(str(pid).encode())


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
    """Import, serve, and run the command in each child."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    request = serve(requests)
    requests.detach()
    if request is None:
        return 0
    recorded = os.environ.get(RECORDED)
    os.environ.clear()
    os.environ.update(request["environment"])
    if recorded:
        os.environ[RECORDED] = recorded
        importlib.import_module("mutants.tracing").trace_this_process()
    os.chdir(request["directory"])
    sys.path[0] = request["directory"]  # as `python -m` and `python -c` have it
    sys.argv = [sys.argv[0], *request["arguments"]]
    if request["patch"]:
        exec(request["patch"], {"sys": sys})
    from dra_agent.cli.main import main as run

    code = run()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
