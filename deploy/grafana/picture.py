"""Draw the time series of a dashboard as SVG from the data of a Prometheus, as docs/how-to/operate/monitoring.md shows.

python -m deploy.grafana.picture http://127.0.0.1:9090 dra-agent-fleet 90 > docs/images/fleet-dashboard.svg
"""

from __future__ import annotations

import json
import sys
import time
from html import escape
from urllib.parse import urlencode
from urllib.request import urlopen

from deploy.grafana.dashboards import DASHBOARDS
from deploy.grafana.model import Panel, Query

WIDTH, HEIGHT = 560, 300
"""Pixels of a panel."""
_PLOT = (70, 40, 480, 130)
"""Left, top, width and height of the plot in its panel, in pixels."""
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
_SAMPLES = 60
_COLUMNS = 2
_LEGEND_ENTRIES = 10

Line = tuple[str, list[tuple[float, float]]]
"""Legend, and values by time."""


def main() -> int:
    """Print the SVG; arguments: URL of Prometheus, uid of the dashboard, seconds before now."""
    url, uid, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    dashboard = next(one for one in DASHBOARDS if one.uid == uid)
    panels = [panel for panel in dashboard.panels if panel.type == "timeseries"]
    end = time.time()
    drawn = [(panel, _lines(url, panel, end - seconds, end)) for panel in panels]
    drawn = [(panel, lines) for panel, lines in drawn if lines]
    rows = -(-len(drawn) // _COLUMNS)
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_COLUMNS * WIDTH} {rows * HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>'
    )
    for number, (panel, lines) in enumerate(drawn):
        x, y = number % _COLUMNS * WIDTH, number // _COLUMNS * HEIGHT
        print(f'<g transform="translate({x} {y})">{_panel(panel, lines, end - seconds, seconds)}</g>')
    print("</svg>")
    return 0


def _lines(url: str, panel: Panel, start: float, end: float) -> list[Line]:
    return [line for query in panel.queries for line in _query(url, query, start, end)]


def _query(url: str, query: Query, start: float, end: float) -> list[Line]:
    expr = query.expr.replace("$__rate_interval", "30s").replace("$instance", ".*")
    step = max(1.0, (end - start) / _SAMPLES)
    parameters = urlencode({"query": expr, "start": start, "end": end, "step": step})
    with urlopen(f"{url}/api/v1/query_range?{parameters}") as response:  # noqa: S310  # the URL is the caller's
        series = json.load(response)["data"]["result"]
    found = []
    for one in series:
        legend = query.legend
        for name, value in one["metric"].items():
            legend = legend.replace("{{" + name + "}}", value)
        found.append((legend, [(float(at), float(value)) for at, value in one["values"]]))
    return found


def _panel(panel: Panel, lines: list[Line], start: float, seconds: float) -> str:
    left, top, width, height = _PLOT
    # Series that are 0 all the time would fill the legend.
    lines = [line for line in lines if any(value for _, value in line[1])][:_LEGEND_ENTRIES]
    most = max((value for _, values in lines for _, value in values), default=1.0) or 1.0
    parts = [
        f'<rect x="4" y="4" width="{WIDTH - 8}" height="{HEIGHT - 8}" fill="none" stroke="#cccccc"/>',
        f'<text x="16" y="26" font-size="14" font-weight="bold">{escape(panel.title)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = top + height * (1 - share)
        parts.append(f'<path d="M{left} {y:.0f}h{width}" stroke="#e5e5e5"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{_amount(most * share, panel.unit)}</text>'
        )
    parts.append(f'<text x="{left}" y="{top + height + 16}">0 s</text>')
    parts.append(f'<text x="{left + width}" y="{top + height + 16}" text-anchor="end">{seconds:.0f} s</text>')
    for number, (legend, values) in enumerate(lines):
        color = _COLORS[number]
        points = " ".join(
            f"{left + width * (at - start) / seconds:.1f},{top + height * (1 - value / most):.1f}"
            for at, value in values
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        x, y = 16 + number % 2 * (WIDTH // 2 - 10), top + height + 36 + number // 2 * 16
        parts.append(f'<rect x="{x}" y="{y - 8}" width="10" height="8" fill="{color}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}">{escape(legend)}</text>')
    return "".join(parts)


def _amount(value: float, unit: str) -> str:
    return f"{value / (1 << 30):.0f} GiB" if unit == "bytes" else f"{value:g}"


if __name__ == "__main__":
    sys.exit(main())
