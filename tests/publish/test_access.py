"""Dry runs before an agent becomes leader, and when it gives up leadership, against a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tiers
from dra_agent.kube_client import connect
from dra_agent.publish import Publisher, access
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from publish.node import DRIVER, NODE, Node, devices


class Peers:
    """Another agent of the node, controlled by the test."""

    def __init__(self) -> None:
        self.elder = True
        self.reports: list[bool] = []

    def is_leader(self) -> bool:
        return not self.elder or self.reports[-1:] == [True]

    def has_able_elder(self) -> bool:
        return self.elder

    def report_able(self, able: bool) -> None:
        self.reports.append(able)


def run(node: Node, peers: Peers, scenario: Callable[[Publisher], Awaitable[Any]], **options: Any) -> None:
    async def main() -> None:
        async with connect(node.kubeconfig) as api:
            publisher = Publisher(
                api, node=NODE, driver=DRIVER, inventory=lambda: node.inventory, peers=peers, **options
            )
            await publisher.start()
            try:
                await scenario(publisher)
            finally:
                await publisher.stop()

    asyncio.run(main())


def dry_runs(api: FakeApi) -> list[str]:
    return [request.method for request in api.requests if "dryRun" in request.query]


@tiers.PATIENCE
def test_an_agent_leads_only_after_a_successful_dry_run(node: Node, fake_api: FakeApi) -> None:
    node.set_devices(*devices(2))
    fault = fake_api.fail(403, times=None, methods="POST PUT", path="dryRun=All")
    peers = Peers()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(dry_runs(fake_api)) >= 2)
        assert peers.reports == [] and node.writes() == []
        assert "a fault of status 403" in (publisher.standby_reason or "")
        fake_api.faults.lift(fault)
        await eventually_async(lambda: peers.reports == [True])
        await eventually_async(lambda: len(node.names()) == 2)
        assert publisher.standby_reason is None

    run(node, peers, scenario)


def test_the_leader_of_the_node_must_lead_its_host_too(
    node: Node, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.publish.pool.STANDBY_INTERVAL_S", 0.05)
    node.is_leader = False
    node.set_devices(*devices(1))
    peers = Peers()
    peers.elder = False

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: any(request.watch for request in fake_api.requests))
        publisher.devices_changed()
        await eventually_async(lambda: publisher.reading().pending)
        before = node.leader_checks
        await eventually_async(lambda: node.leader_checks > before + 3)
        assert node.writes() == []

    run(node, peers, scenario, is_leader=node.check_leader)


def test_without_an_older_agent_no_dry_run_is_made(node: Node, fake_api: FakeApi) -> None:
    node.set_devices(*devices(2))
    peers = Peers()
    peers.elder = False

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: peers.reports == [True] and len(node.names()) == 2)

    run(node, peers, scenario)
    assert dry_runs(fake_api) == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_write_gives_up_leadership_until_one_is_accepted(node: Node, fake_api: FakeApi, status: int) -> None:
    node.set_devices(*devices(1))
    peers = Peers()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        fault = fake_api.fail(status, times=None, methods="POST PUT")
        node.set_devices(*devices(2))
        publisher.devices_changed()
        await eventually_async(lambda: peers.reports == [True, False])
        assert publisher.standby_reason is not None
        fake_api.faults.lift(fault)
        await eventually_async(lambda: peers.reports == [True, False, True])
        publisher.devices_changed()
        await eventually_async(lambda: len(node.names()) == 2)

    run(node, peers, scenario)


def test_an_unreachable_server_gives_up_leadership(
    node: Node, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "LOST_AFTER_S", 0.2)
    node.set_devices(*devices(1))
    peers = Peers()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        fake_api.stop()
        await eventually_async(lambda: peers.reports == [True, False])
        fake_api.start()
        await eventually_async(lambda: peers.reports == [True, False, True])

    run(node, peers, scenario)


def test_a_refused_list_gives_up_leadership(node: Node, fake_api: FakeApi) -> None:
    node.set_devices(*devices(1))
    peers = Peers()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        fake_api.fail(401, times=None, methods="GET", path="resourceslices")
        fake_api.compact()
        fake_api.end_watches()
        await eventually_async(lambda: peers.reports == [True, False])

    run(node, peers, scenario)


def test_without_devices_the_dry_run_has_an_empty_slice(node: Node, fake_api: FakeApi) -> None:
    peers = Peers()

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: peers.reports == [True])

    run(node, peers, scenario)
    assert dry_runs(fake_api) == ["POST"] and node.slices() == []
