"""What the page shows of a host and of a cluster."""

from __future__ import annotations

import itertools
import re
from urllib.parse import urlsplit

import pytest

from dra_cluster.page import cluster, host
from dra_cluster.page.frame import document
from dra_cluster.page.html import Content
from dra_cluster.page.last_known import LastRead
from dra_cluster.page.views import ClusterView, DeviceView, HostView, NodeView, PendingView, ReclaimView, ReleaseView

from .conftest import Serve, request

GPU = DeviceView(
    name="gpu-0",
    type="gpu",
    product="H100",
    claims=("team/train",),
    utilization_ratio=0.42,
    memory_used_bytes=40 << 30,
    memory_limit_bytes=80 << 30,
    power_watts=310.4,
    temperature_celsius=61.0,
)


def text_of(content: list[Content]) -> str:
    """Return the text of a view, without markup."""
    page = document("title", *content, active="./", has_cluster=False)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def host_text(view: HostView | None, *, age_s: float | None = 1.0, error: str | None = None) -> str:
    return text_of(host.content(LastRead(view, age_s, error, None)))


def test_a_device_has_its_claim_and_its_values() -> None:
    text = host_text(HostView(name="a", agent="Agent", devices=(GPU, DeviceView(name="nic-0", product="ConnectX-7"))))
    assert "2 devices, 1 held by claims" in text
    assert "gpu-0 H100 ✓ healthy team/train 42 % 40.0 / 80.0 GiB 310 W 61 °C" in text
    assert "nic-0 ConnectX-7 ✓ healthy free - - - -" in text


def test_a_device_is_not_free_if_its_claims_are_not_known() -> None:
    devices = (DeviceView(name="gpu-0", claims=None), DeviceView(name="nic-0", claims=None, taints=("a:NoSchedule",)))
    text = host_text(HostView(name="a", agent="Agent", devices=devices))
    assert "2 devices, claims not known" in text and "free" not in text
    assert re.findall("✓ healthy (?:a:NoSchedule )?not known", text) == [
        "✓ healthy not known",
        "✓ healthy a:NoSchedule not known",
    ]


def test_columns_without_any_value_are_left_out() -> None:
    text = host_text(HostView(name="a", agent="Agent", devices=(DeviceView(name="nic-0"),), telemetry="Off."))
    assert "Utilization" not in text and "Off." in text


def test_health_is_a_word_and_not_only_a_color() -> None:
    sick = DeviceView(name="gpu-0", health="unhealthy (XID 79)", taints=("dra-agent.internal/xid:NoExecute",))
    text = host_text(HostView(name="a", agent="Agent", devices=(sick,)))
    assert "⚠ unhealthy (XID 79) dra-agent.internal/xid:NoExecute" in text and "free" not in text


def test_values_out_of_range_do_not_leave_their_meter() -> None:
    view = HostView(name="a", agent="A", devices=(DeviceView(name="gpu-0", utilization_ratio=1.7),))
    page = document("title", *host.content(LastRead(view, 0.0, None, None)), active="./", has_cluster=False)
    assert 'value="1.00"' in page and "170 %" in page


def test_a_reclaim_counts_down_from_the_age_of_its_reading() -> None:
    reclaim = ReclaimView(
        phase="notice",
        seconds_left=95.0,
        reasons=("aws: spot interruption",),
        claims=(
            ReleaseView(claim="team/a", state="released"),
            ReleaseView(claim="team/b", state="prepared", pods=("pod b-0",), why="a budget"),
        ),
    )
    text = host_text(HostView(name="a", agent="A", reclaim=reclaim), age_s=5.0)
    assert "Time left: 90 s" in text and "aws: spot interruption" in text
    assert "1 of 2 claims released" in text and "team/b prepared pod b-0 a budget" in text
    assert "The deadline has passed for 5 s" in host_text(HostView(name="a", agent="A", reclaim=reclaim), age_s=100.0)


@pytest.mark.parametrize("phase", ["none", "hint", "notice", "cancelled"])
def test_devices_are_not_offered_during_a_reclaim(phase: str) -> None:
    view = HostView(name="a", agent="A", reclaim=ReclaimView(phase=phase), devices=(DeviceView(name="gpu-0"),))
    assert ("free, no new claims" in host_text(view)) is (phase in ("hint", "notice"))


def test_a_host_without_an_agent_is_a_scan() -> None:
    text = host_text(HostView(name="a", agent=None, note="no agent is running here.", devices=(GPU,)))
    assert "No agent responds on this host. The devices are those of a scan. no agent is running here." in text
    assert "gpu-0" in text and "Reclaim" not in text


def test_old_values_stay_with_their_age_and_the_error() -> None:
    text = host_text(HostView(name="a", agent="A", devices=(GPU,)), age_s=200.0, error="the disk is full")
    assert "Read 3 min ago. ⚠ Not current: the disk is full." in text and "gpu-0" in text
    assert "Nothing could be read: the disk is full." in host_text(None, age_s=None, error="the disk is full")
    slow = text_of(host.content(LastRead(HostView(name="a", agent="A"), 30.0, None, 12.0)))
    assert "Read 30 s ago. ⚠ The present reading takes 12 s so far." in slow
    first = text_of(host.content(LastRead(None, None, None, 5.0)))
    assert "The present reading takes 5 s so far." in first


def test_the_picture_is_loaded_again_when_it_changes(serve: Serve) -> None:
    sources = set()
    for picture in ("<svg>1</svg>", "<svg>2</svg>"):
        server = serve(HostView(name="a", agent="A", picture=picture))
        found = re.search(r'src="(topology\.svg\?[0-9a-f]+)"', request(server.url).text)
        assert found is not None
        sources.add(found[1])
        response = request(server.url, path=urlsplit(server.url).path + found[1])
        assert (response.text, response.headers["Content-Type"]) == (picture, "image/svg+xml")
    assert len(sources) == 2


def test_the_place_of_the_picture_has_its_size_before_it_is_loaded() -> None:
    for picture, size in (
        ('<?xml version="1.0"?>\n<svg xmlns="x" width="1200.5" height="300" viewBox="0 0 1 2">', "1200 300"),
        ("<svg/>", ""),
    ):
        view = HostView(name="a", agent="A", picture=picture)
        page = document("title", *host.content(LastRead(view, 0.0, None, None)), active="./", has_cluster=False)
        (image,) = re.findall("<img [^>]*>", page)
        assert " ".join(re.findall('(?:width|height)="([^"]*)"', image)) == size


def test_the_page_of_a_cluster_is_absent_without_one(serve: Serve) -> None:
    server = serve(HostView(name="a", agent="A"))
    assert "Cluster" not in request(server.url).text
    assert request(server.url, path=urlsplit(server.url).path + "cluster").status == 404


def node(number: int, **values: object) -> NodeView:
    return NodeView(name=f"node-{number:04}", families=(("gpu", 8),), devices=8, **values)  # type: ignore[arg-type]


def test_a_cluster_of_a_thousand_nodes_has_pages(serve: Serve) -> None:
    view = ClusterView(nodes=tuple(node(number, held=5, tainted=number % 2) for number in range(1000)))
    server = serve(HostView(name="a", agent="A"), view)
    path = urlsplit(server.url).path
    first, last = request(server.url, path=path + "cluster"), request(server.url, path=path + "cluster?page=20")
    assert "1,000 nodes, 8,000 devices: 5,000 held, 500 tainted." in first.text
    assert "Nodes 1 to 50 of 1,000" in first.text and 'href="cluster?page=2"' in first.text
    assert "Nodes 951 to 1,000 of 1,000" in last.text and 'rel="next"' not in last.text
    assert len(first.text) < 40_000
    assert re.findall(r'href="cluster\?page=(\d+)" rel', last.text) == ["19"]
    assert re.findall(r'page=(\d+)"[^>]*>\d+<', last.text) == [str(number) for number in range(1, 21)]
    assert 'href="cluster?page=20" aria-current="page"' in last.text
    for query in ("page=0", "page=999999", "page=-1", "page=1&x=1", "page=²", "page=" + "9" * 500, "x"):
        assert request(server.url, path=f"{path}cluster?{query}".encode("ascii", "ignore").decode()).status == 200


def test_pages_of_the_largest_cluster_are_few_links() -> None:
    nodes = tuple(node(number) for number in range(5000))
    page = document(
        "c", *cluster.content(LastRead(ClusterView(nodes=nodes), 0.0, None, None), 42), active="", has_cluster=True
    )
    numbers = [int(number) for number in re.findall(r'page=(\d+)"[^>]*>\d+<', page)]
    assert len(numbers) <= cluster.MAX_PAGE_LINKS + 2
    assert {1, 42, 100} <= set(numbers) and numbers == sorted(numbers)
    assert max(after - before for before, after in itertools.pairwise(numbers)) <= 5


def test_reclaims_and_pending_claims_have_reasons_and_limits() -> None:
    nodes = tuple(node(number, phase="notice", message="spot", claims=("team/a",)) for number in range(60))
    pending = PendingView(claim="team/b", created="2026-01-01T00:00:00Z", reason="fits on none of 60 nodes")
    view = ClusterView(nodes=nodes, pending=(pending,), pending_total=31, notes=("cannot list pods",))
    text = text_of(cluster.content(LastRead(view, 1.0, None, None), 1))
    assert "31 claims pending. 60 nodes being reclaimed." in text and "⚠ cannot list pods" in text
    assert "team/b 2026-01-01T00:00:00Z fits on none of 60 nodes" in text and "30 newer claims not listed" in text
    assert "node-0049 notice team/a spot" in text and "10 nodes more" in text


def test_parts_that_change_are_marked_for_the_script() -> None:
    view = HostView(name="a", agent="A", devices=(GPU,), picture="<svg/>", problems=("p",))
    page = document("title", *host.content(LastRead(view, 0.0, None, None)), active="./", has_cluster=False)
    assert set(re.findall(r'<(?:p|section) id="(\w+)"', page)) >= {"devices", "topology", "problems", "agent"}
    parts = re.search(r"</h1>(.*)</main>", page)
    assert parts is not None
    assert parts[1].count("data-live") == len(re.findall(r"<(?:section|p id)", parts[1]))
