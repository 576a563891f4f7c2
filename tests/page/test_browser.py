"""The page in a headless Chromium: light and dark, at phone width, live and without JavaScript."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_agent.page.last_known import LastKnown
from dra_agent.page.server import PageServer
from dra_agent.page.site import Page, Site
from dra_agent.page.views import ClusterView, DeviceView, HostView, NodeView, PendingView, ReclaimView, ReleaseView
from eventually import DEADLINE_S

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)
PHONE, DESKTOP = "390,844", "1280,900"
DARK = "preferredColorScheme=0"
UPDATES_MS = 7000
"""Virtual time of a page: three intervals of the script."""
MIN_CONTRAST = 4.5
"""Of text and its background (WCAG 2.2, 1.4.3)."""
PROBE = """
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
document.title = JSON.stringify({
  width: document.documentElement.scrollWidth,
  window: innerWidth,
  contrast: low[0],
  background: getComputedStyle(document.body).backgroundColor,
});
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (package chromium-headless-shell)")

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

Browse = Callable[..., str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Load a page; return its document after some virtual time. The browser must report nothing."""

    def load(url: str, *settings: str, window: str = DESKTOP, time_ms: int = UPDATES_MS) -> str:
        done = subprocess.run(
            [
                *(CHROMIUM or "", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *(f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr", "--log-level=0"),
                *(f"--window-size={window}", f"--virtual-time-budget={time_ms}", "--dump-dom"),
                *([f"--blink-settings={','.join(settings)}"] if settings else []),
                url,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S * 3,
        )
        assert done.returncode == 0, done.stderr
        assert "CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    return load


class ProbedSite(Site):
    """The page with a script that measures it."""

    def page(self, path: str, query: str) -> Page | None:
        return Page(PROBE.encode(), "text/javascript") if path == "page.js" else super().page(path, query)


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


def views(read: Callable[[], HostView] = lambda: HOST) -> tuple[LastKnown[HostView], LastKnown[ClusterView]]:
    return LastKnown(read, interval_s=0), LastKnown(lambda: CLUSTER, interval_s=0)


@pytest.mark.parametrize("window", [PHONE, DESKTOP])
@pytest.mark.parametrize("path", ["", "cluster"])
@pytest.mark.parametrize("settings", [(), (DARK,)], ids=["light", "dark"])
def test_no_text_is_cut_off_or_hard_to_read(
    browse: Browse, open_site: Callable[[Site], str], window: str, path: str, settings: tuple[str, ...]
) -> None:
    shown = browse(open_site(ProbedSite(*views())) + path, *settings, window=window)
    title = re.search(r"<title>(.*)</title>", shown)
    assert title is not None
    found = json.loads(title[1].replace("&amp;", "&"))
    assert found["window"] == int(window.split(",")[0])
    assert found["width"] <= found["window"], "it scrolls sideways"
    assert found["contrast"][0] >= MIN_CONTRAST, found["contrast"]
    assert (found["background"] == "rgb(255, 255, 255)") is (settings == ())


def test_the_page_updates_itself(browse: Browse, open_site: Callable[[Site], str]) -> None:
    readings: list[int] = []

    def read() -> HostView:
        readings.append(1)
        return HostView(name="a", agent="A", devices=(DeviceView(name=f"reading-{len(readings)}"),))

    shown = browse(open_site(Site(*views(read))))
    assert "No response" not in shown
    number = re.search(r"reading-(\d+)", shown)
    assert number is not None and int(number[1]) > 1


def test_the_countdown_runs(browse: Browse, open_site: Callable[[Site], str]) -> None:
    # The page is read before its first update, so a lower number is the script's.
    host = LastKnown(lambda: HOST, interval_s=3600)
    shown = browse(open_site(Site(host, None)), time_ms=1900)
    left = re.search(r'data-seconds="([\d.]+)">(\d+) s', shown)
    assert left is not None and int(left[2]) < 100


def test_the_page_is_complete_without_its_script(browse: Browse, open_site: Callable[[Site], str]) -> None:
    class SilentSite(Site):
        def page(self, path: str, query: str) -> Page | None:
            return Page(b"", "text/javascript") if path == "page.js" else super().page(path, query)

    shown = browse(open_site(SilentSite(*views())))
    assert GPU.name in shown and 'role="timer"' in shown and 'id="connection"' not in shown


def test_a_page_without_its_server_says_so(browse: Browse, open_site: Callable[[Site], str]) -> None:
    class EndingSite(Site):
        requests = 0

        def page(self, path: str, query: str) -> Page | None:
            if path == "":
                self.requests += 1
            return super().page(path, query) if self.requests < 2 else None

    shown = browse(open_site(EndingSite(*views())))
    assert "No response from dra-agent ui since" in shown and GPU.name in shown
