"""The kubelet finds the driver, whatever came first and whatever happens to the sockets."""

from __future__ import annotations

import asyncio
import contextlib
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


def test_the_kubelet_takes_the_driver_in(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet() as kubelet:
            assert plugin.failures == ["waiting for the kubelet"]
            driver = await kubelet.driver()
            assert driver.name == DRIVER
            assert driver.endpoint == node.kubelet_dir / "plugins" / DRIVER / "dra.sock"
            assert driver.services == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
            assert plugin.state.done and plugin.failures == []

    run(scenario())


def test_sockets_are_for_their_owner_only_and_leave_nothing(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin():
            sockets = [path for path in node.kubelet_dir.rglob("*") if stat.S_ISSOCK(path.stat().st_mode)]
            assert {path.name for path in sockets} == {f"{DRIVER}-reg.sock", "dra.sock"}
            assert {stat.S_IMODE(path.stat().st_mode) for path in sockets} == {0o600}

    run(scenario())
    assert not [path for path in node.kubelet_dir.rglob("*") if not path.is_dir()]


def test_a_refusal_is_told_and_answered_with_an_error(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet(refuse="name is taken") as kubelet:
            await kubelet.look()
            assert kubelet.told == ["not registered: name is taken"]
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


def test_what_killed_agents_left_is_removed_and_nothing_else(node: Node, run: Run) -> None:
    directory = node.kubelet_dir / "plugins_registry"
    directory.mkdir(parents=True)
    left, young, listening = (directory / f".~{name}" for name in ("00000a", "00000b", "00000c"))
    sockets = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for sock, path in zip(sockets, (left, young, listening), strict=True):
        sock.bind(str(path))
        if path != young:
            os.utime(path, (0, 0))
    sockets[2].listen()
    (directory / ".~others.txt").touch()

    async def scenario() -> None:
        async with node.registered():
            assert not left.exists()
            assert young.exists() and listening.exists() and (directory / ".~others.txt").exists()

    run(scenario())
    for sock in sockets:
        sock.close()


def test_sockets_of_killed_instances_are_removed_and_those_of_others_are_not(node: Node, run: Run) -> None:
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


def test_another_process_keeps_its_socket_until_it_ends(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "CHECK_INTERVAL_S", 0.05)
    path = node.kubelet_dir / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(path))
    other.listen()
    inode = path.stat().st_ino

    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet() as kubelet:
            await asyncio.sleep(0.2)
            assert path.stat().st_ino == inode
            assert "another process listens" in plugin.failures[0]
            assert not kubelet.sockets()
            other.close()
            await kubelet.driver()
            assert plugin.failures == []

    run(scenario())


def test_a_file_in_the_way_is_named_not_removed(node: Node, run: Run) -> None:
    path = node.kubelet_dir / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    path.write_text("precious")

    async def scenario() -> None:
        async with node.plugin() as plugin:
            assert "the path is not a socket" in plugin.failures[0]
            assert str(path) in plugin.failures[0]

    run(scenario())
    assert path.read_text() == "precious"


def test_a_listener_that_answers_nobody_is_a_listener(short_path: Path) -> None:
    path = short_path / "dra.sock"
    with contextlib.ExitStack() as open_sockets:
        busy = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        for _ in range(100):
            client = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            if client.connect_ex(str(path)):
                break
        else:
            pytest.fail("the backlog has no end")
        with pytest.raises(RetryableError, match="another process listens"):
            SocketFile(path)


def test_a_socket_that_was_not_bound_cannot_be_published(short_path: Path) -> None:
    file = SocketFile(short_path / "dra.sock")
    with pytest.raises(RetryableError, match="cannot be made: No such file"):
        file.publish()
    assert not file.is_present and not list(short_path.iterdir())


def test_one_socket_that_cannot_be_bound_leaves_no_other(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    described = inspect.getattr_static(SocketFile, "address")
    assert isinstance(described, property) and described.fget is not None
    usual = described.fget

    def address(file: SocketFile) -> str:
        return f"unix:{node.directory}/missing/x" if file.path.name.endswith("-reg.sock") else usual(file)

    monkeypatch.setattr(SocketFile, "address", property(address))
    monkeypatch.setattr(plugin, "CHECK_INTERVAL_S", 0.05)

    async def scenario() -> None:
        async with node.plugin() as plugin, node.kubelet() as kubelet:
            assert "cannot listen" in plugin.failures[0] and f"{DRIVER}-reg.sock" in plugin.failures[0]
            assert not [path for path in node.kubelet_dir.rglob("*") if not path.is_dir()]
            monkeypatch.setattr(SocketFile, "address", property(usual))
            await kubelet.driver()
            assert plugin.failures == []

    run(scenario())


@dataclass
class Observed:
    registrations: list[tuple[bool, str]] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)

    def registration(self, registered: bool, error: str) -> None:
        self.registrations.append((registered, error))

    def observe_phase(self, phase: str, seconds: float) -> None:
        self.phases.append((phase, seconds))


def test_what_the_kubelet_does_is_observed(node: Node, run: Run) -> None:
    node.claims.add("c", "u")
    observed = Observed()
    told: list[RegistrationStatus] = []

    async def scenario() -> None:
        began = time.perf_counter()
        async with (
            node.plugin(observer=observed, registered=told.append) as plugin,
            node.kubelet(refuse="name is taken") as kubelet,
        ):
            await kubelet.look()
            kubelet.refuse = ""
            driver = await kubelet.driver()
            assert (await driver.call("prepare", [("default", "c", "u")])).claims["u"].devices
            assert str(plugin.state) == "registered with the kubelet"
        ((phase, seconds),) = observed.phases
        assert phase == "fetch" and 0 <= seconds <= time.perf_counter() - began

    run(scenario())
    assert observed.registrations == [(False, "name is taken"), (True, "")]
    assert [(state.done, state.error) for state in told] == observed.registrations


def test_a_plugin_that_is_given_no_source_of_health_prepares(node: Node, run: Run) -> None:
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
            await plugin._turns.run("v", "preparing", None, list, asyncio.get_running_loop().time() + 60)

    run(scenario())


@pytest.mark.parametrize("what", ["all", "registry", "service"])
def test_vanished_sockets_come_back(node: Node, run: Run, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "CHECK_INTERVAL_S", 0.05)

    async def scenario() -> None:
        async with node.plugin(), node.kubelet() as kubelet:
            first = await kubelet.driver()
            assert (await first.call("unprepare", [("default", "c", "u")])).claims["u"].error == ""
            match what:
                case "all":
                    shutil.rmtree(node.kubelet_dir)
                case "registry":
                    shutil.rmtree(node.kubelet_dir / "plugins_registry")
                case "service":
                    first.endpoint.unlink()
            await kubelet.look()
            left = kubelet.sockets()
            await eventually_async(lambda: kubelet.sockets().keys() and kubelet.sockets() != left)
            again = await kubelet.driver()
            assert (await again.call("unprepare", [("default", "c", "u")])).claims["u"].error == ""

    run(scenario())


def test_the_socket_of_another_instance_is_left_alone(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.plugin(pod_uid="new"):
            async with node.plugin(pod_uid="old"), node.kubelet() as kubelet:
                await kubelet.look()
                assert len(kubelet.drivers) == 2
            async with node.kubelet() as kubelet:
                driver = await kubelet.driver()
                assert driver.endpoint.name == "dra-new.sock"
                await driver.call("unprepare", [("default", "c", "u")])
                assert len(list(node.kubelet_dir.rglob("*.sock"))) == 2

    run(scenario())


def test_an_older_kubelet_gets_v1beta1(node: Node, run: Run) -> None:
    node.claims.add("c", "u")

    async def scenario() -> None:
        async with node.plugin(), node.kubelet(knows=["v1beta1.DRAPlugin"]) as kubelet:
            driver = await kubelet.driver()
            assert "v1beta1" in driver.messages.__name__
            answer = await driver.call("prepare", [("default", "c", "u")])
            assert answer.claims["u"].devices[0].device_name == "gpu-0"

    run(scenario())


def test_health_is_unimplemented_where_nobody_knows_it(node: Node, run: Run) -> None:
    async def scenario() -> None:
        async with node.registered() as (_, driver):
            watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = driver.channel.unary_stream(
                "/v1.DRAResourceHealth/NodeWatchResources"
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch(b"").read()
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    run(scenario())
