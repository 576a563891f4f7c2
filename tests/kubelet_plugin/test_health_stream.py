"""Contents and times of health messages to the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

import grpc
import pytest

from dra_agent.health.published_health import DeviceHealth, DeviceHealthStore, KubeletHealth
from dra_agent.kubelet_plugin import health_stream, plugin
from dra_agent.kubelet_plugin.plugin import KubeletPlugin
from dra_agent.kubelet_plugin.proto import health_v1_pb2, health_v1alpha1_pb2
from eventually import DEADLINE_S, eventually_async
from kubelet_plugin.conftest import Node, Run
from kubelet_plugin.fake_kubelet import Driver


def device_health(device: str, health: KubeletHealth, message: str = "") -> DeviceHealth:
    return DeviceHealth("n/gpu", device, health, 1700000000.9, message)


@dataclass
class FakeHealth(DeviceHealthStore):
    current: list[DeviceHealth] = field(default_factory=lambda: [device_health("gpu-0", "healthy")])
    subscribers: list[Callable[[], None]] = field(default_factory=list)

    def rows(self) -> list[DeviceHealth]:
        return self.current

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.subscribers.append(changed)
        return lambda: self.subscribers.remove(changed)

    def change(self, *rows: DeviceHealth) -> None:
        self.current = list(rows)
        for changed in self.subscribers:
            changed()


@pytest.fixture
def health() -> FakeHealth:
    return FakeHealth()


def watchers(plugin: KubeletPlugin) -> int:
    assert plugin.health is not None
    return plugin.health.watchers


def watch(driver: Driver, messages: ModuleType = health_v1_pb2) -> Any:
    service = messages.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name
    return driver.channel.unary_stream(
        f"/{service}/NodeWatchResources",
        request_serializer=messages.NodeWatchResourcesRequest.SerializeToString,
        response_deserializer=messages.NodeWatchResourcesResponse.FromString,
    )(messages.NodeWatchResourcesRequest())


@pytest.mark.parametrize("messages", [health_v1_pb2, health_v1alpha1_pb2])
def test_every_device_is_sent_at_once_and_after_a_change(
    node: Node, run: Run, health: FakeHealth, messages: ModuleType
) -> None:
    async def scenario() -> None:
        async with node.registered(health=health, resend_after_s=3600.0) as (_, driver):
            assert driver.services[1:] == ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
            stream = watch(driver, messages)
            first = await asyncio.wait_for(stream.read(), 60)
            (sent,) = first.devices
            assert (sent.device.pool_name, sent.device.device_name) == ("n/gpu", "gpu-0")
            assert (sent.health, sent.last_updated_time, sent.health_check_timeout_seconds) == (1, 1700000000, 30)
            health.change(device_health("gpu-0", "unhealthy", "XID 79"), device_health("gpu-1", "unknown"))
            second = await asyncio.wait_for(stream.read(), 60)
            assert [(device.health, device.message) for device in second.devices] == [(2, "XID 79"), (0, "")]
            stream.cancel()

    run(scenario())


def test_an_early_watcher_waits_for_the_devices(node: Node, run: Run, health: FakeHealth) -> None:
    async def scenario() -> None:
        async with node.registered(health=health, serve=False) as (plugin, driver):
            first = asyncio.ensure_future(watch(driver).read())
            await eventually_async(lambda: watchers(plugin) == 1)
            assert not first.done()
            plugin.serve(node.devices, health)
            assert (await asyncio.wait_for(first, 60)).devices[0].health == 1

    run(scenario())


def test_health_is_sent_again_before_it_expires(node: Node, run: Run, health: FakeHealth) -> None:
    assert 2 * health_stream.RESEND_AFTER_S < health_stream.HEALTH_CHECK_TIMEOUT_S

    async def scenario() -> None:
        async with node.registered(health=health, resend_after_s=0.05) as (_, driver):
            stream = watch(driver)
            for _ in range(4):
                assert (await asyncio.wait_for(stream.read(), 60)).devices[0].health == 1
            stream.cancel()

    run(scenario())


def test_a_change_on_another_thread_reaches_every_watcher(node: Node, run: Run, health: FakeHealth) -> None:
    async def scenario() -> None:
        async with node.registered(health=health, resend_after_s=3600.0) as (_, driver):
            streams = [watch(driver), watch(driver, health_v1alpha1_pb2), watch(driver)]
            for stream in streams:
                await asyncio.wait_for(stream.read(), 60)
            await asyncio.to_thread(health.change, device_health("gpu-0", "unhealthy"))
            for stream in streams:
                assert (await asyncio.wait_for(stream.read(), 60)).devices[0].health == 2
                stream.cancel()

    run(scenario())


def test_streams_end_cleanly_at_shutdown(
    node: Node, run: Run, health: FakeHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "GRACE_S", 10 * DEADLINE_S)

    async def scenario() -> None:
        async with node.kubelet() as kubelet:
            async with node.plugin(health=health):
                driver = await kubelet.driver()
                stream = watch(driver)
                await asyncio.wait_for(stream.read(), 60)
                start = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - start < DEADLINE_S, "an open stream must not delay the shutdown"
            assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
            assert health.subscribers == []

    run(scenario())


def test_canceled_watches_are_removed(node: Node, run: Run, health: FakeHealth) -> None:
    async def scenario() -> None:
        async with node.registered(health=health) as (plugin, driver):
            for _ in range(20):
                stream = watch(driver)
                await asyncio.wait_for(stream.read(), 60)
                stream.cancel()
            await eventually_async(lambda: watchers(plugin) == 0)

    run(scenario())


def test_text_that_is_not_unicode_has_replacement_characters(node: Node, run: Run, health: FakeHealth) -> None:
    health.current = [device_health("gpu-0", "unhealthy", "driver: \udcff")]

    async def scenario() -> None:
        async with node.registered(health=health) as (_, driver):
            stream = watch(driver)
            assert (await asyncio.wait_for(stream.read(), 60)).devices[0].message == "driver: ?"
            stream.cancel()

    run(scenario())


def test_a_connection_has_a_limited_number_of_streams(node: Node, run: Run, health: FakeHealth) -> None:
    async def scenario() -> None:
        async with node.registered(health=health, resend_after_s=3600.0) as (_, driver):
            streams = [watch(driver) for _ in range(257)]
            reads = [asyncio.ensure_future(stream.read()) for stream in streams]
            await eventually_async(lambda: sum(read.done() for read in reads) >= 256)
            (waiting,) = (read for read in reads if not read.done())
            next(stream for stream, read in zip(streams, reads, strict=True) if read.done()).cancel()
            assert (await asyncio.wait_for(waiting, 60)).devices
            for stream in streams:
                stream.cancel()

    run(scenario())


def test_long_messages_are_truncated_at_a_character(node: Node, run: Run, health: FakeHealth) -> None:
    health.current = [device_health("gpu-0", "unhealthy", "ä" * 1000)]

    async def scenario() -> None:
        async with node.registered(health=health) as (_, driver):
            stream = watch(driver)
            assert (await asyncio.wait_for(stream.read(), 60)).devices[0].message == "ä" * 512
            stream.cancel()

    run(scenario())


def test_a_failing_source_ends_its_stream_only(node: Node, run: Run, health: FakeHealth) -> None:
    health.current = [device_health("gpu-0", cast(Any, "on fire"))]

    async def scenario() -> None:
        async with node.registered(health=health) as (_, driver):
            with pytest.raises(grpc.aio.AioRpcError):
                await asyncio.wait_for(watch(driver).read(), 60)
            assert (await driver.call("unprepare", [("default", "c", "u")])).claims["u"].error == ""
            health.change(device_health("gpu-0", "healthy"))
            stream = watch(driver)
            assert (await asyncio.wait_for(stream.read(), 60)).devices
            stream.cancel()

    run(scenario())
