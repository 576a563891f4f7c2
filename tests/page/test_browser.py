"""The page in a headless Chromium: light and dark, at phone width, live and without JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dra_cluster.page.last_known import LastKnown
from dra_cluster.page.server import PageServer
from dra_cluster.page.site import Page, Site
from dra_cluster.page.views import ClusterView, DeviceView, HostView, NodeView, PendingView, ReclaimView, ReleaseView
from page import chromium

PHONE, DESKTOP = (390, 844), (1280, 900)
MIN_CONTRAST = 4.5
"""Of text and its background (WCAG 2.2, 1.4.3)."""
PROBE = """(() => {
function parsed(color) { return color.match(/[\\d.]+/g).map(Number); }
function luminance(color) {
  const linear = color.slice(0, 3).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function background(element) {
  for (; element; element = element.parentElement) {
    const color = parsed(getComputedStyle(element).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
}
const low = [];
for (const element of document.body.querySelectorAll("*")) {
  if (Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim())) {
    const both = [parsed(getComputedStyle(element).color), background(element)].map(luminance).sort((a, b) => b - a);
    const contrast = (both[0] + 0.05) / (both[1] + 0.05);
    low.push([contrast, element.textContent]);
  }
}
low.sort((one, other) => one[0] - other[0]);
return {
  width: document.documentElement.scrollWidth,
  window: innerWidth,
  contrast: low[0],
  background: getComputedStyle(document.body).backgroundColor,
};
})()"""
BROKEN_WORDS = """((cells) => {
const broken = [];
for (const cell of document.querySelectorAll(cells)) {
  const node = cell.firstChild;
  for (const word of node.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (new Set(Array.from(range.getClientRects(), (one) => one.top)).size > 1) broken.push(word[0]);
  }
}
return broken;
})"""
READING = r"Number(/reading-(\d+)/.exec(document.body.textContent)[1])"

pytestmark = pytest.mark.skipif(
    chromium.CHROMIUM is None, reason="no Chromium is installed (package chromium-headless-shell)"
)

GPU = DeviceView(
    name="gpu-0000-3b-00-0-mig-1g-10gb-4",
    product="NVIDIA H100 80GB HBM3 with a name that is long",
    claims=("a-namespace-with-a-long-name/" + "a-claim-with-a-very-long-name-" * 5,),
    taints=("dra-agent.internal/uncorrectable-memory-errors:NoExecute",),
    health="unhealthy (two causes)",
    utilization_ratio=0.5,
    memory_used_bytes=1 << 30,
    memory_limit_bytes=80 << 30,
    power_watts=300.0,
    temperature_celsius=50.0,
)
HOST = HostView(
    name="node-" + "x" * 60,
    agent="Agent 1.0 with pid 1",
    devices=(GPU, DeviceView(name="nic-0", product="ConnectX-7")),
    telemetry="Values were sampled 1 s ago.",
    picture='<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="300" viewBox="0 0 1200 300"/>',
    reclaim=ReclaimView(
        phase="notice",
        seconds_left=100.0,
        reasons=("aws: spot interruption",),
        claims=(ReleaseView(claim="team/train", state="prepared", pods=("pod train-0",), why="x" * 200),),
    ),
    problems=("y" * 300,),
)
CLUSTER = ClusterView(
    nodes=(NodeView(name="n" * 63, families=(("gpu", 8), ("nic", 8)), devices=16, held=3, tainted=1, phase="notice"),),
    pending=(PendingView(claim="team/late", created="2026-01-01T00:00:00Z", reason="z" * 300),),
    pending_total=1,
)

Browse = Callable[..., chromium.Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.Chromium(tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started


@pytest.fixture
def browse(browser: chromium.Chromium) -> Iterator[Browse]:
    """Open a page in a window; the browser must report nothing about it."""
    opened: list[chromium.Page] = []

    def load(url: str, window: tuple[int, int] = DESKTOP, *, dark: bool = False, script: bool = True) -> chromium.Page:
        opened.append(browser.open(url, width=window[0], height=window[1], dark=dark, script=script))
        return opened[-1]

    yield load
    for page in opened:
        complaints = page.complaints()
        page.close()
        assert complaints == []


@pytest.fixture
def open_site() -> Iterator[Callable[[Site], str]]:
    servers: list[PageServer] = []

    def start(site: Site) -> str:
        servers.append(PageServer(site, 0))
        servers[-1].start()
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


class EndingSite(Site):
    """Responds until the script of the page was read: a browser may request the page again before that."""

    has_ended = False

    def page(self, path: str, query: str) -> Page | None:
        if path == "" and self.has_ended:
            return None
        self.has_ended = self.has_ended or path == "page.js"
        return super().page(path, query)


def views(read: Callable[[], HostView] = lambda: HOST) -> tuple[LastKnown[HostView], LastKnown[ClusterView]]:
    return LastKnown(read, interval_s=0), LastKnown(lambda: CLUSTER, interval_s=0)


@pytest.mark.parametrize("window", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("path", ["", "cluster"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_text_is_cut_off_or_hard_to_read(
    browse: Browse, open_site: Callable[[Site], str], window: tuple[int, int], path: str, dark: bool
) -> None:
    found = browse(open_site(Site(*views())) + path, window, dark=dark).value(PROBE)
    assert found["window"] == window[0]
    assert found["width"] <= found["window"], "it scrolls sideways"
    assert found["contrast"][0] >= MIN_CONTRAST, found["contrast"]
    assert (found["background"] == "rgb(255, 255, 255)") is not dark


@pytest.mark.parametrize(
    ("width", "cells"),
    [(900, "thead th"), (1180, "thead th, #device-table tbody th"), (1280, "thead th, #device-table tbody th")],
)
def test_no_heading_and_no_device_is_broken_within_a_word(
    browse: Browse, open_site: Callable[[Site], str], width: int, cells: str
) -> None:
    page = browse(open_site(Site(*views())), (width, DESKTOP[1]))
    assert page.value(f"{BROKEN_WORDS}('{cells}')") == []
    assert page.value("document.documentElement.scrollWidth") <= width


def test_the_page_updates_itself(browse: Browse, open_site: Callable[[Site], str]) -> None:
    readings: list[int] = []

    def read() -> HostView:
        readings.append(1)
        return HostView(name="a", agent="A", devices=(DeviceView(name=f"reading-{len(readings)}"),))

    page = browse(open_site(Site(*views(read))))
    first = page.value(READING)
    page.eventually(f"{READING} > {first}")
    assert "No response" not in page.html()


def test_the_countdown_runs(browse: Browse, open_site: Callable[[Site], str]) -> None:
    # No response replaces the server's number, that of data-seconds: a lower one is the script's.
    page = browse(open_site(EndingSite(*views())))
    page.eventually(
        "((timer) => parseInt(timer.textContent) < Math.floor(Number(timer.dataset.seconds)))"
        "(document.querySelector('[data-seconds]'))"
    )


def test_the_page_is_complete_without_its_script(browse: Browse, open_site: Callable[[Site], str]) -> None:
    shown = browse(open_site(Site(*views())), script=False).html()
    assert GPU.name in shown and 'role="timer"' in shown and 'id="connection"' not in shown


def test_a_page_without_its_server_shows_it(browse: Browse, open_site: Callable[[Site], str]) -> None:
    page = browse(open_site(EndingSite(*views())))
    page.eventually("document.body.textContent.includes('No response from dra-agent ui since')")
    assert GPU.name in page.html()
