"""The kubelet finds the driver in any start order, and after any loss of the sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import shutil
import socket
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from dra_agent.errors import RetryableError
from dra_agent.kubelet_plugin import plugin
from dra_agent.kubelet_plugin.plugin import KubeletPlugin
from dra_agent.kubelet_plugin.registration import RegistrationStatus
from dra_agent.kubelet_plugin.sockets import SocketFile, socket_paths
from eventually import eventually_async
from kubelet_plugin.conftest import DRIVER, Node, Run


def test_the_kubelet_registers_the_driver(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet() as kubelet:
            assert plugin.failures == ["waiting for the kubelet"]
            driver = await kubelet.driver()
            assert driver.name == DRIVER
            assert driver.endpoint == node.kubelet_dir / "plugins" / DRIVER / "dra.sock"
            assert driver.services == ["v1.DRAPlugin"]
            assert plugin.state.done and plugin.failures == []

    run(scenario())


def test_sockets_are_private_and_removed_at_shutdown(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin():
            sockets = [path for path in node.kubelet_dir.rglob("*") if stat.S_ISSOCK(path.stat().st_mode)]
            assert {path.name for path in sockets} == {f"{DRIVER}-reg.sock", "dra.sock"}
            assert {stat.S_IMODE(path.stat().st_mode) for path in sockets} == {0o600}

    run(scenario())
    assert not [path for path in node.kubelet_dir.rglob("*") if not path.is_dir()]


def test_a_refused_registration_is_reported_and_retried(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet(refuse="name is taken") as kubelet:
            await kubelet.reconcile()
            assert kubelet.errors == ["not registered: name is taken"]
            assert plugin.failures == ["the kubelet refused the driver: name is taken"]
            kubelet.refuse = ""
            await kubelet.driver()
            assert plugin.failures == []

    run(scenario())


def test_a_stale_socket_is_replaced(node: Node, run: Run) -> None:
    path = node.kubelet_dir / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    async def scenario() -> None:
        async with node.registered() as (_, driver):
            await driver.call("unprepare", [("default", "c", "uid-1")])

    run(scenario())


def test_temporary_sockets_of_killed_agents_are_removed(node: Node, run: Run) -> None:
    directory = node.kubelet_dir / "plugins_registry"
    directory.mkdir(parents=True)
    stale, recent, listening = (directory / f".~{name}" for name in ("00000a", "00000b", "00000c"))
    sockets = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for sock, path in zip(sockets, (stale, recent, listening), strict=True):
        sock.bind(str(path))
        if path != recent:
            os.utime(path, (0, 0))
    sockets[2].listen()
    (directory / ".~others.txt").touch()

    async def scenario() -> None:
        async with node.registered():
            assert not stale.exists()
            assert recent.exists() and listening.exists() and (directory / ".~others.txt").exists()

    run(scenario())
    for sock in sockets:
        sock.close()


def test_only_stale_sockets_of_this_driver_are_removed(node: Node, run: Run) -> None:
    data, registry = node.kubelet_dir / "plugins" / DRIVER, node.kubelet_dir / "plugins_registry"
    data.mkdir(parents=True)
    registry.mkdir()
    dead = [data / "dra-dead.sock", registry / f"{DRIVER}-dead-reg.sock"]
    alive = [data / "dra-alive.sock", registry / f"{DRIVER}-alive-reg.sock"]
    others = [registry / "another.example.com-reg.sock", registry / f"{DRIVER}-x-reg.sock", data / "dra.sock"]
    sockets = []
    for path in (*dead, *alive, *others):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(path))
        if path in alive:
            sock.listen()
        os.utime(path, (0, 0))
        sockets.append(sock)

    async def scenario() -> None:
        async with node.plugin(pod_uid="new"):
            assert not any(path.exists() for path in dead)
            assert all(path.exists() for path in (*alive, *others))

    run(scenario())
    for sock in sockets:
        sock.close()


def test_a_socket_of_another_process_is_kept_until_it_ends(
    node: Node, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "CHECK_INTERVAL_S", 0.05)
    path = node.kubelet_dir / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(path))
    other.listen()
    inode = path.stat().st_ino

    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet() as kubelet:
            await eventually_async(lambda: "another process listens" in plugin.failures[0])
            assert path.stat().st_ino == inode
            assert not kubelet.sockets()
            other.close()
            await kubelet.driver()
            assert plugin.failures == []

    run(scenario())


def test_a_file_at_the_socket_path_is_reported_not_removed(node: Node, run: Run) -> None:
    path = node.kubelet_dir / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    path.write_text("precious")

    async def scenario() -> None:
        async with node.plugin() as plugin:
            assert "the path is not a socket" in plugin.failures[0]
            assert str(path) in plugin.failures[0]

    run(scenario())
    assert path.read_text() == "precious"


def test_a_listener_with_a_full_backlog_is_a_listener(short_path: Path) -> None:
    path = short_path / "dra.sock"
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        for _ in range(100):
            client = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            if client.connect_ex(str(path)):
                break
        else:
            pytest.fail("the backlog never fills up")
        with pytest.raises(RetryableError, match="another process listens"):
            SocketFile(path)


def test_an_unbound_socket_cannot_be_published(short_path: Path) -> None:
    file = SocketFile(short_path / "dra.sock")
    with pytest.raises(RetryableError, match="cannot be made: No such file"):
        file.publish()
    assert not file.is_present and not list(short_path.iterdir())


def test_a_directory_that_is_read_only_for_a_service_is_reported_with_the_drop_in(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(
        RetryableError, match="cannot be made: Read-only file system.* drop-in kubernetes.conf"
    ) as raised:
        SocketFile(short_path / "plugins" / "dra.sock")
    assert f"{short_path}/plugins" in str(raised.value)


def test_a_failed_bind_leaves_no_other_socket(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = inspect.getattr_static(SocketFile, "address")
    assert isinstance(descriptor, property) and descriptor.fget is not None
    get_address = descriptor.fget

    def address(file: SocketFile) -> str:
        return f"unix:{node.directory}/missing/x" if file.path.name.endswith("-reg.sock") else get_address(file)

    monkeypatch.setattr(SocketFile, "address", property(address))
    monkeypatch.setattr(plugin, "CHECK_INTERVAL_S", 0.05)

    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet() as kubelet:
            assert "cannot listen" in plugin.failures[0] and f"{DRIVER}-reg.sock" in plugin.failures[0]
            assert not [path for path in node.kubelet_dir.rglob("*") if not path.is_dir()]
            monkeypatch.setattr(SocketFile, "address", property(get_address))
            await kubelet.driver()
            assert plugin.failures == []

    run(scenario())


@dataclass
class RecordingMetrics:
    registrations: list[tuple[bool, str]] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)

    def registration(self, registered: bool, error: str) -> None:
        self.registrations.append((registered, error))

    def observe_phase(self, phase: str, seconds: float) -> None:
        self.phases.append((phase, seconds))


def test_registrations_and_fetches_are_observed(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    metrics = RecordingMetrics()
    states: list[RegistrationStatus] = []

    async def scenario() -> None:
        start = time.perf_counter()
        async with (
            node.plugin(metrics=metrics, registered=states.append) as plugin,
            node.kubelet(refuse="name is taken") as kubelet,
        ):
            await kubelet.reconcile()
            kubelet.refuse = ""
            driver = await kubelet.driver()
            assert (await driver.call("prepare", [("default", "c", "u")])).claims["u"].devices
            assert str(plugin.state) == "registered with the kubelet"
        ((phase, seconds),) = metrics.phases
        assert phase == "fetch" and 0 <= seconds <= time.perf_counter() - start

    run(scenario())
    assert metrics.registrations == [(False, "name is taken"), (True, "")]
    assert [(state.done, state.error) for state in states] == metrics.registrations


def test_a_plugin_without_a_health_source_prepares_claims(node: Node, run: Run) -> None:
    node.claims.add("c", "u")

    async def scenario() -> None:
        plugin = KubeletPlugin(socket_paths(node.kubelet_dir, DRIVER, ""), DRIVER, node.claims, health=True)
        await plugin.open()
        plugin.serve(node.devices)
        try:
            async with node.kubelet() as kubelet:
                driver = await kubelet.driver()
                assert (await driver.call("prepare", [("default", "c", "u")])).claims["u"].devices
        finally:
            await plugin.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await plugin.executor.run("v", "preparing", None, list, asyncio.get_running_loop().time() + 60)

    run(scenario())


@pytest.mark.parametrize("removed", ["all", "registry", "service"])
def test_removed_sockets_are_recreated(node: Node, run: Run, removed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "CHECK_INTERVAL_S", 0.05)

    async def scenario() -> None:
        async with node.plugin(), node.kubelet() as kubelet:
            first = await kubelet.driver()
            assert (await first.call("unprepare", [("default", "c", "u")])).claims["u"].error == ""
            match removed:
                case "all":
                    shutil.rmtree(node.kubelet_dir)
                case "registry":
                    shutil.rmtree(node.kubelet_dir / "plugins_registry")
                case "service":
                    first.endpoint.unlink()
            await kubelet.reconcile()
            remaining = kubelet.sockets()
            await eventually_async(lambda: kubelet.sockets().keys() and kubelet.sockets() != remaining)
            registered_again = await kubelet.driver()
            assert (await registered_again.call("unprepare", [("default", "c", "u")])).claims["u"].error == ""

    run(scenario())


def test_the_socket_of_another_instance_is_kept(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin(pod_uid="new"):
            async with node.plugin(pod_uid="old"), node.kubelet() as kubelet:
                await kubelet.reconcile()
                assert len(kubelet.drivers) == 2
            async with node.kubelet() as kubelet:
                driver = await kubelet.driver()
                assert driver.endpoint.name == "dra-new.sock"
                await driver.call("unprepare", [("default", "c", "u")])
                assert len(list(node.kubelet_dir.rglob("*.sock"))) == 2

    run(scenario())


def test_health_is_unimplemented_without_a_health_source(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = driver.channel.unary_stream(
                "/v1.DRAResourceHealth/NodeWatchResources"
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch(b"").read()
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    run(scenario())
