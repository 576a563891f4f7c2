"""The view of one host: its reclaim, its devices with their claims and values, and its topology."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import cast

from dra_cluster.page.frame import count, currency, duration, names, section
from dra_cluster.page.html import Content, Html, element, table
from dra_cluster.page.last_known import LastRead
from dra_cluster.page.views import DeviceView, HostView, ReclaimView

MAX_DEVICES = 512
"""Devices that are listed; a host with every GPU in seven partitions has 56."""
MAX_NAMES = 8
"""Claims, taints or pods that are named in one cell."""
MAX_PROBLEMS = 20
MAX_RELEASES = 64
"""Claims of a reclaim that are listed."""
_PICTURE_SIZE = re.compile(r'<svg [^>]*?\bwidth="([0-9]+)[0-9.]*" height="([0-9]+)[0-9.]*"')
ACTIVE_PHASES = ("hint", "notice")
"""Phases in which new claims get no devices."""
PHASES = {
    "none": "No reclaim is active.",
    "hint": "Hint: the node may be reclaimed. New claims get no devices.",
    "notice": "Notice: the node is being reclaimed.",
    "cancelled": "The reclaim was withdrawn.",
}


def title(known: LastRead[HostView]) -> str:
    """Return the heading of the view."""
    return "Host" if known.value is None else f"Host {known.value.name}"


def content(known: LastRead[HostView]) -> list[Content]:
    """Return the view."""
    view = known.value
    status = currency(cast("LastRead[object]", known))
    if view is None:
        return [status]
    return [
        element("p", _agent(view), id="agent", class_="note" if view.agent else "problem", data_live=""),
        status,
        None if view.reclaim is None else _reclaim(view.reclaim, known.age_s or 0.0),
        _devices(view),
        _picture(view),
        _problems(view),
    ]


def picture_version(view: HostView) -> str:
    """Return a short digest of the picture, which changes with it."""
    return hashlib.sha256(view.picture.encode()).hexdigest()[:12]


def _agent(view: HostView) -> str:
    running = f"{view.agent}." if view.agent else "⚠ No agent responds on this host. The devices are those of a scan."
    return f"{running} {view.note}".strip()


def _reclaim(reclaim: ReclaimView, age_s: float) -> Html:
    parts: list[Content] = [element("p", PHASES.get(reclaim.phase, reclaim.phase))]
    if reclaim.seconds_left is not None and reclaim.phase in ACTIVE_PHASES:
        remaining_s = reclaim.seconds_left - age_s
        parts.append(
            element(
                "p",
                "Time left: " if remaining_s >= 0 else "The deadline has passed for ",
                element(
                    "strong",
                    duration(abs(remaining_s)),
                    role="timer",
                    data_seconds=f"{remaining_s:.1f}",
                ),
            )
        )
    if reclaim.reasons:
        parts.append(names(reclaim.reasons, MAX_NAMES))
    if reclaim.claims:
        released = sum(one.state == "released" for one in reclaim.claims)
        parts.append(
            table(
                "releases",
                f"{released} of {count(len(reclaim.claims), 'claim')} released",
                ("Claim", "State", "Reserved for", "Why"),
                ((one.claim, one.state, names(one.pods, MAX_NAMES), one.why) for one in reclaim.claims[:MAX_RELEASES]),
            )
        )
    return section("reclaim", "Reclaim", *parts, class_="banner" if reclaim.phase in ACTIVE_PHASES else None)


def _devices(view: HostView) -> Html:
    held = sum(bool(device.claims) for device in view.devices)
    known = all(device.claims is not None for device in view.devices)
    caption = f"{count(len(view.devices), 'device')}, " + (f"{held:,} held by claims" if known else "claims not known")
    shown = view.devices[:MAX_DEVICES]
    is_offered = view.reclaim is None or view.reclaim.phase not in ACTIVE_PHASES
    value_columns = [column for column in _VALUES if any(column[1](device) is not None for device in shown)]
    columns = ("Device", "Product", "State", "Claims", *(name for name, _ in value_columns))
    rows = (
        (
            device.name,
            device.product or device.type,
            _state(device),
            names(device.claims or (), MAX_NAMES) or _unheld(device, is_offered=is_offered),
            *(value(device) for _, value in value_columns),
        )
        for device in shown
    )
    left_out = len(view.devices) - len(shown)
    return section(
        "devices",
        "Devices",
        element("p", view.telemetry, class_="note") if view.telemetry else None,
        table("device-table", caption, columns, rows) if shown else element("p", "There are no devices to claim."),
        element("p", f"{count(left_out, 'device')} more: `dra-agent devices` lists all.") if left_out else None,
    )


def _state(device: DeviceView) -> Content:
    healthy = device.health == "healthy"
    state = element("span", "✓ healthy" if healthy else f"⚠ {device.health}", class_="good" if healthy else "bad")
    return [state, names(device.taints, MAX_NAMES)]


def _unheld(device: DeviceView, *, is_offered: bool) -> Content:
    if device.claims is None:
        return "not known"
    if device.taints:
        return None
    return element("span", "free" if is_offered else "free, no new claims", class_="free")


def _utilization(device: DeviceView) -> Content:
    ratio = device.utilization_ratio
    return None if ratio is None else _meter(ratio, f"{ratio * 100:.0f} %", "utilization")


def _memory(device: DeviceView) -> Content:
    used, limit = device.memory_used_bytes, device.memory_limit_bytes
    if used is None and limit is None:
        return None
    amounts = " / ".join("?" if amount is None else f"{amount / (1 << 30):.1f}" for amount in (used, limit))
    return f"{amounts} GiB" if used is None or not limit else _meter(used / limit, f"{amounts} GiB", "memory")


def _power(device: DeviceView) -> Content:
    return None if device.power_watts is None else f"{device.power_watts:.0f} W"


def _temperature(device: DeviceView) -> Content:
    return None if device.temperature_celsius is None else f"{device.temperature_celsius:.0f} °C"


_VALUES: tuple[tuple[str, Callable[[DeviceView], Content]], ...] = (
    ("Utilization", _utilization),
    ("Memory", _memory),
    ("Power", _power),
    ("Temperature", _temperature),
)


def _meter(ratio: float, words: str, label: str) -> Content:
    part = min(max(ratio, 0.0), 1.0)
    return element(
        "span",
        element("meter", min="0", max="1", value=f"{part:.2f}", aria_label=label),
        " ",
        element("span", words, class_="amount"),
        class_="measure",
    )


def _picture(view: HostView) -> Content:
    if not view.picture:
        return None
    source = f"topology.svg?{picture_version(view)}"
    alt = "NUMA nodes, PCIe switches and devices; the table above has the claims"
    # With its size, the page does not move while a changed picture is loaded.
    size = _PICTURE_SIZE.search(view.picture)
    across, down = size.groups() if size is not None else (None, None)
    image = element("img", src=source, alt=alt, width=across, height=down)
    return section(
        "topology",
        "Topology",
        element("figure", element("a", image, href=source, title="Open the picture in its full size")),
    )


def _problems(view: HostView) -> Content:
    if not view.problems:
        return None
    items = [element("li", problem) for problem in view.problems[:MAX_PROBLEMS]]
    left_out = len(view.problems) - len(items)
    more = element("p", f"{count(left_out, 'problem')} more: `dra-agent doctor` lists all.") if left_out else None
    return section("problems", "Problems", element("ul", items), more)
