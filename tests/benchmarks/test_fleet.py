"""The parts of benchmarks/fleet.py: a small fleet on the fake API server, the comparison of slices, and the counts."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet import check_programs, measures_of, right_within
from fleet_counts import AuditLog, Scrape, by_kind, connections, most_in_a_window, usage
from fleet_inventory import DRIVER, mismatch, of_node, with_flap, with_notice
from fleet_observer import FleetObserver
from fleet_phases import Fleet
from fleet_supervisor import supervise
from fleet_table import Phase, extrapolate, save_phases
from results import load, percentile, save, this_machine

from dra_agent.host import Host
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import connect
from dra_agent.slices import desired_slices
from eventually import DEADLINE_S
from fake_apiserver.fake import FakeApi
from publish.node import devices, partitioned

AGENTS = 5
MAX_START_REQUESTS = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: agents have sockets below it."""
    with tempfile.TemporaryDirectory(prefix="f-") as directory:
        yield Path(directory)


def test_agents_publish_and_follow_their_devices(fake_api: FakeApi, tmp_path: Path, folder: Path) -> None:
    kubeconfig = fake_api.kubeconfig(tmp_path / "kubeconfig")
    host = Host(tmp_path, tmp_path, tmp_path)

    async def main() -> None:
        async with connect(kubeconfig) as api:
            observer = FleetObserver(api)
            following = asyncio.create_task(observer.run())
            fleet = Fleet(kubeconfig, folder, [(host, Inventory(devices=devices(2)))], AGENTS, observer)
            for node in fleet.nodes:
                fake_api.put("nodes", {"metadata": {"name": node}})
            try:
                await fleet.open()
                await fleet.start()
                await right(observer)
                sent = Counter(
                    node_of(request.query) for request in fake_api.requests if "fieldSelector" in request.query
                )
                assert sent.pop("") == 2 * AGENTS, "each agent lists and watches the slices of several nodes"
                assert set(sent.values()) == {4}, "each agent lists and watches its node and its slices"
                own = [request for request in fake_api.requests if not is_of_observer(request.path, request.query)]
                assert len(own) <= MAX_START_REQUESTS * AGENTS
                some = fleet.some(0.4)
                assert len(some) == 2
                fleet.flap(some, ill=True)
                assert set(observer.differences) == set(some)
                await right(observer)
                fleet.flap(some, ill=False)
                await right(observer)
                await fleet.reclaim(some)
                await right(observer)
                await fleet.withdraw(some)
                await right(observer)
                observer.disturbed.clear()
                await fleet.update(some, "b", DEADLINE_S)
                assert not observer.disturbed
                assert not observer.differences
            finally:
                await fleet.stop()
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    asyncio.run(main())


async def right(observer: FleetObserver) -> None:
    assert await observer.wait_right(DEADLINE_S) is not None, observer.differences


def node_of(query: dict[str, str]) -> str:
    return query["fieldSelector"].partition("=")[2]


def is_of_observer(path: str, query: dict[str, str]) -> bool:
    return path.endswith("/resourceslices") and "fieldSelector" not in query and ("watch" in query or "limit" in query)


def published(inventory: Inventory, node: str = "n") -> list[dict[str, Any]]:
    return desired_slices(inventory, node=node, driver=DRIVER).slices


def test_equal_slices_have_no_mismatch() -> None:
    for inventory in (Inventory(devices=devices(130)), partitioned(), with_notice(partitioned()), Inventory()):
        slices = published(inventory)
        for one in slices:
            for device in one["spec"].get("devices", ()):
                for taint in device.get("taints", ()):
                    taint["timeAdded"] = "2026-01-01T00:00:00Z"
        assert mismatch(slices, inventory, "n") == ""
        assert mismatch([*slices, *published(inventory, "other")], inventory, "n") == ""


def test_each_difference_is_found() -> None:
    inventory = Inventory(devices=devices(70))
    slices = published(inventory)
    assert "missing" in mismatch([], inventory, "n")
    assert "incomplete" in mismatch(slices[:1], inventory, "n")
    assert "missing" in mismatch(slices, Inventory(devices=devices(69)), "n")
    assert "differs" in mismatch(slices, with_flap(inventory), "n")
    assert "differs" in mismatch(slices, with_notice(inventory), "n")
    older = copy.deepcopy(slices)
    for one in older:
        one["spec"]["pool"]["generation"] = 0
    assert mismatch([*slices, *older], inventory, "n") == "", "older generations do not count"
    twice = copy.deepcopy(slices)
    twice[0]["spec"]["devices"].append(twice[0]["spec"]["devices"][0])
    assert "twice" in mismatch(twice, inventory, "n")
    stray = copy.deepcopy(slices)
    for one in stray:
        one["spec"]["pool"]["name"] = "n/unknown"
    assert "should not exist" in mismatch([*slices, *stray], inventory, "n")
    counters = published(partitioned())
    other = msgspec.structs.replace(partitioned(), counter_sets={})
    assert "counter" in mismatch(counters, other, "n")


def test_uuids_differ_between_nodes() -> None:
    from dra_agent.inventory.api import Attribute

    uuid = "GPU-12345678-1234-1234-1234-123456789abc"
    (device,) = devices(1)
    device = msgspec.structs.replace(device, attributes={**device.attributes, "uuid": Attribute.of(uuid)})
    inventory = Inventory(devices=(device,))
    found = {of_node(inventory, node).devices[0].attributes["uuid"].string for node in ("a", "b")}
    assert len(found) == 2
    assert all(one is not None and one.startswith("GPU-") and len(one) == len(uuid) for one in found)


def audit(verb: str, stage: str = "ResponseComplete", *, user: str = "agents", query: str = "", **about: str) -> str:
    return json.dumps(
        {
            "stage": stage,
            "verb": verb,
            "user": {"username": user},
            "requestURI": f"/apis{query}",
            "objectRef": about,
            "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
            "stageTimestamp": "2026-01-01T00:00:00.250000Z",
            "responseStatus": {"code": 200},
        }
    )


def test_requests_are_counted_once_and_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, "agents")
    assert log.read() == []
    lines = [
        audit("list", resource="nodes"),
        audit("list", user="admin", resource="nodes"),
        audit("watch", "ResponseStarted", resource="nodes"),
        audit("watch", resource="nodes"),
        audit("create", query="?dryRun=All", resource="resourceslices"),
        audit("patch", resource="nodes", subresource="status"),
    ]
    path.write_text("\n".join(lines) + "\n" + lines[0][:20])
    found = log.read()
    assert by_kind(found) == {
        "create (dry run) resourceslices": 1,
        "list nodes": 1,
        "patch nodes/status": 1,
        "watch nodes": 1,
    }
    assert {one.seconds for one in found} == {0.25}
    with path.open("a") as file:
        file.write(lines[0][20:] + "\n")
    assert by_kind(log.read()) == {"list nodes": 1}
    assert log.read() == []


def test_windows_and_percentiles() -> None:
    assert most_in_a_window([0.0, 0.05, 0.09, 0.1, 0.3], 0.1) == 3
    assert most_in_a_window([], 0.1) == 0
    assert [percentile([3.0, 1.0, 2.0, 4.0], share) for share in (0.5, 0.99)] == [2.0, 4.0]
    assert percentile([], 0.5) == 0.0


def test_processes_and_connections_are_read(tmp_path: Path, fake_api: FakeApi) -> None:
    own = usage(os.getpid())
    assert own.cpu_s > 0
    assert own.resident > 1 << 20
    (tmp_path / "net").mkdir()
    rows = ["  sl  local_address rem_address   st", "   0: 0100007F:A000 0100007F:1F90 01", "   1: 0:1F90 0:A000 01"]
    (tmp_path / "net/tcp").write_text("\n".join([*rows, "   2: 0100007F:A001 0100007F:1F90 06"]) + "\n")
    assert connections(8080, tmp_path) == 1


def test_metrics_are_added_up_by_label() -> None:
    scrape = Scrape(
        "# HELP x\n"
        'apiserver_longrunning_requests{resource="nodes",verb="WATCH"} 3\n'
        'apiserver_longrunning_requests{resource="leases",verb="WATCH"} 5\n'
        'apiserver_response_sizes_sum{resource="nodes"} 1e+03\n'
        "apiserver_watch_events_sizes_sum 20\n"
        "go_memstats_next_gc_bytes 200\n"
        "go_memstats_stack_inuse_bytes 7\n"
    )
    assert (scrape.watches, scrape.sent, scrape.received, scrape.live) == (3, 1020, 0, 107)


def phase(name: str, **values: float) -> Phase:
    requests = {"list nodes": 60, "create resourceslices": 10}
    cpu = {"kube-apiserver": 1.0, "agents": 1.0}
    right_s: dict[str, float | None] = {"after it": 31.0}
    return Phase(name, 10, 5.0, requests, 1, 1, 20, 30, cpu, {"kube-apiserver": 1}, 1, 2, right_s, values)


def test_results_state_whether_targets_hold(tmp_path: Path) -> None:
    done = [
        phase("start storm"),
        phase(
            "idle",
            **{"requests per agent and hour": 11.0, "live bytes per watch": 1024, "resident bytes per watch": 2048},
        ),
        phase("API server restart", **{"lists": 20, "most lists in 100 ms": 3}),
        phase("rolling update", **{"nodes with wrong slices at any moment": 0}),
        phase("mass reclaim"),
        phase("health flap"),
    ]
    phases = {one.name: one for one in done}
    path, _ = save("fleet", measures_of(phases), this_machine(), directory=tmp_path)
    holds = {one.name: one.holds for one in load(path).measures}
    assert holds["requests at start, per agent"] is True
    assert holds["requests while idle, per agent and hour"] is False
    assert holds["share of lists in 100 ms after an API server restart"] is False
    assert holds["every slice is right: health flap, after it"] is False
    assert holds["nodes with wrong slices in a rolling update"] is True
    assert right_within("never", None).holds is False
    steps = extrapolate(phases, 5000)
    assert "7.00 requests x 5000 agents = 35000 requests" in steps[0]
    assert "2.0 per agent x 5000 = 10000" in steps[1]
    assert "1 KiB for each, with connections and cached slices: 10 MiB" in steps[1]
    assert "2000 lists a second, 200 in 100 ms (4.0% of the fleet)" in steps[2]
    save_phases(tmp_path / "target/phases.json", {"agents": 10}, done, steps)
    saved = json.loads((tmp_path / "target/phases.json").read_text())
    assert saved["phases"][0]["requests"]["list nodes"] == 60
    assert saved["extrapolation"] == steps


def test_nothing_is_left_after_a_crash(tmp_path: Path) -> None:
    """As with a crash of a native library: the process stops none of those that it has started."""
    script = 'sleep 600 & echo $! > "$1/pid"; echo "$0" > "$1/folder"; kill -KILL $$'
    assert supervise(lambda folder: ["sh", "-c", script, str(folder), str(tmp_path)]) == -signal.SIGKILL
    assert not Path((tmp_path / "folder").read_text().strip()).exists()
    process = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}")
    assert not process.exists() or ") Z " in (process / "stat").read_text()


def test_missing_programs_are_one_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        check_programs(tmp_path)
    expected = f"no etcd and no kube-apiserver in {tmp_path}: build them with `make cluster-programs`"
    assert caught.value.code == expected
