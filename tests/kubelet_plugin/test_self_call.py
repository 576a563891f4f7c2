"""The plugin calls itself as a kubelet does: gRPC's threads can be missing for the rest of the process's life."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dra_agent.errors import RetryableError
from dra_agent.kubelet_plugin import self_call
from dra_agent.kubelet_plugin.self_call import call_registration
from dra_agent.supervisor import on_thread
from eventually import DEADLINE_S, eventually_async
from kubelet_plugin.conftest import Node, Run
from unprivileged import home_for_everyone

STARTS = """
import asyncio, os, resource, sys
from pathlib import Path
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.kubelet_plugin.plugin import KubeletPlugin
from dra_agent.kubelet_plugin.self_call import call_registration
from dra_agent.kubelet_plugin.sockets import socket_paths
from dra_agent.supervisor import on_thread
from dra_agent.threads import start_thread

if os.geteuid() == 0:  # for whom there is no limit
    os.setgid(54321)
    os.setuid(54321)
paths = socket_paths(Path(sys.argv[1]), "d.example")


async def main():
    plugin = KubeletPlugin(paths, "d.example", None)
    asyncio.get_running_loop().set_default_executor(DaemonExecutor(4, "worker", kept=1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    await plugin.open()
    print(plugin.failures[0].partition(":")[0], flush=True)
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    while plugin.failures != ["waiting for the kubelet"]:
        await asyncio.sleep(0.01)
    await on_thread(call_registration, f"unix:{paths.registration}")
    print("responds", flush=True)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    await plugin.close()
    print("closed", flush=True)
    os._exit(0)


asyncio.run(main())
"""


def test_a_plugin_that_starts_without_room_for_threads_listens_once_there_is_room_and_ends_without() -> None:
    with home_for_everyone() as folder:
        folder.chmod(0o777)
        command = [sys.executable, "-c", STARTS, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stdout.splitlines() == ["thread 'room'", "responds", "closed"], done.stderr


def test_a_plugin_responds_to_its_call(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            registration = next(iter(node.kubelet_dir.glob("plugins_registry/*")))
            await on_thread(call_registration, f"unix:{registration}")
            assert driver.name

    run(scenario())


def test_a_socket_that_accepts_and_never_responds_is_an_error(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_call, "CALL_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_path / "s"))
        silent.listen()
        with pytest.raises(RetryableError, match="the plugin does not respond to calls"):
            call_registration(f"unix:{short_path}/s")


def test_a_plugin_that_does_not_respond_is_a_loop_that_fails(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dra_agent import supervisor as module

    supervisor = module.Supervisor(first_retry_s=0.001)
    monkeypatch.setattr("dra_agent.kubelet_plugin.plugin.supervisor", lambda: supervisor)

    def fail(address: str) -> None:
        raise RetryableError("the plugin does not respond to calls", where=address)

    monkeypatch.setattr("dra_agent.kubelet_plugin.plugin.call_registration", fail)

    async def scenario() -> None:
        async with node.registered():
            while not supervisor.failing():
                await asyncio.sleep(0.01)
            assert "'self call' failed" in supervisor.failing()[0]

    run(scenario())


def test_a_call_that_hangs_is_a_loop_that_fails_and_occupies_one_thread(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dra_agent import supervisor as module

    supervisor = module.Supervisor(first_retry_s=0.001)
    monkeypatch.setattr("dra_agent.kubelet_plugin.plugin.supervisor", lambda: supervisor)
    monkeypatch.setattr("dra_agent.kubelet_plugin.plugin.SELF_CALL_DEADLINE_S", 0.01)
    monkeypatch.setattr("dra_agent.kubelet_plugin.plugin.SELF_CALL_INTERVAL_S", 0.01)
    calls: list[str] = []
    end = threading.Event()

    def hang(address: str) -> None:
        calls.append(address)
        end.wait()

    monkeypatch.setattr("dra_agent.kubelet_plugin.plugin.call_registration", hang)

    async def scenario() -> None:
        async with node.registered():
            await eventually_async(supervisor.failing)
            assert "a call of the plugin to itself hangs" in supervisor.failing()[0]
            assert len(calls) == 1
            monkeypatch.setattr("dra_agent.kubelet_plugin.plugin.call_registration", calls.append)
            end.set()
            await eventually_async(lambda: len(calls) > 1)

    try:
        run(scenario())
    finally:
        end.set()
