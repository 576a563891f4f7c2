"""The tables of `dra-agent top`: nodes, devices and claims, sorted, and limited to the rows of a screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    from dra_agent.telemetry.control import ClaimValues, DeviceValues
    from dra_agent.telemetry.model import DeviceSample

_T = TypeVar("_T")

MAX_FAILURES = 3
"""Lines of failures below the tables of a screen."""


class NodeValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a cluster: sums over the devices whose value is known, and the mean of their utilization."""

    node: str
    endpoint: str
    """The pod of its agent, or the URL, that was read."""
    problem: str = ""
    """Why there are no values."""
    devices: int = 0
    """Those with values."""
    held: int = 0
    """Of these, those that a claim holds."""
    gpu_utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    """The highest."""


class Shown(NamedTuple):
    """What one reading shows."""

    title: str
    devices: Sequence[DeviceValues]
    claims: Sequence[ClaimValues]
    document: Mapping[str, Any]
    """The other fields of the JSON form."""
    nodes: Sequence[NodeValues] | None = None
    """None: of one host."""
    failures: Sequence[str] = ()
    """Lines below the tables."""
    notes: Sequence[str] = ()
    """Lines below the title."""


class _Chosen(NamedTuple):
    """The rows that the flags select, in their order."""

    nodes: list[NodeValues]
    devices: list[DeviceValues]
    claims: list[ClaimValues]


def _choose(shown: Shown, sort: str, show: str) -> _Chosen:
    return _Chosen(
        _sorted(shown.nodes or (), lambda one: _node_key(one, sort)) if show in ("all", "nodes") else [],
        _sorted(shown.devices, lambda one: _device_key(one, sort)) if show in ("all", "devices") else [],
        _sorted(shown.claims, lambda one: _claim_key(one, sort)) if show in ("all", "claims") else [],
    )


def document_of(shown: Shown, *, sort: str, show: str) -> dict[str, Any]:
    """Return the chosen values for JSON and YAML."""
    nodes, devices, claims = _choose(shown, sort, show)
    of_cluster = {} if shown.nodes is None else {"nodes": nodes}
    return {**shown.document, **of_cluster, "devices": devices, "claims": claims}


class Screen(NamedTuple):
    """The size of a terminal."""

    rows: int
    columns: int


def print_tables(shown: Shown, *, sort: str, show: str, screen: Screen | None = None) -> None:
    """Print the chosen tables; `screen` limits their rows, and cuts the lines around them."""
    from dra_agent.cli.output import prints_names
    from dra_agent.cli.table import table
    from dra_agent.printable import printable

    nodes, devices, claims = _choose(shown, sort, show)
    if prints_names():
        columns = {"nodes": [one.node for one in nodes], "claims": [f"{one.namespace}/{one.name}" for one in claims]}
        table(["name"], [[name] for name in columns.get(show, [one.device for one in devices])])
        return
    tables: list[tuple[list[str], list[list[object]], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = []
    node_column = [] if shown.nodes is None else ["node"]
    if shown.nodes is not None and show in ("all", "nodes"):
        tables.append((_NODE_COLUMNS, list(map(_node_cells, nodes)), ("temp", "power", "memory", "held"), (), ("why",)))
    if show in ("all", "devices"):
        tables.append(
            (
                [*node_column, *_DEVICE_COLUMNS],
                [[*([one.node] if node_column else []), *_device_cells(one)] for one in devices],
                ("claim", "temp", "power", "memory", "util"),
                ("product", "mem util", *_ACTIVITY_COLUMNS, "clock", "throttled", *_COUNTER_COLUMNS),
                (),
            )
        )
    if show in ("all", "claims"):
        tables.append(
            (
                [*node_column, *_CLAIM_COLUMNS],
                [[*([one.node] if node_column else []), *_claim_cells(one)] for one in claims],
                ("temp", "power", "memory", "idle", "util"),
                (*_ACTIVITY_COLUMNS, "energy", *_COUNTER_COLUMNS),
                (),
            )
        )
    longest = None if screen is None else screen.columns
    print(printable(shown.title, line=True, longest=longest))
    for note in shown.notes:
        print(printable(note, line=True, longest=longest))
    failures = shown.failures
    if screen is not None and len(failures) > MAX_FAILURES:
        failures = failures[: MAX_FAILURES - 1]
    counts = [len(rows) for _, rows, _, _, _ in tables]
    limits = counts
    if screen is not None:
        # Title and notes, an empty line and the headings of each table, the line of what is left out, failures, and the
        # line of the cursor.
        other = 1 + len(shown.notes) + 2 * len(tables) + 1 + MAX_FAILURES + 1
        limits = share_rows(counts, max(len(tables), screen.rows - other))
    for (columns_, rows, optional, wide, prose), limit in zip(tables, limits, strict=True):
        print()
        table(columns_, rows[:limit], optional=optional, wide=wide, prose=prose)
    if left_out := sum(counts) - sum(limits):
        print(f"{left_out} more rows: `dra-agent top --once` prints all")
    for failure in failures:
        print(printable(failure, line=True, longest=longest))
    if more := len(shown.failures) - len(failures):
        print(f"{more} more failures")


def share_rows(counts: Sequence[int], rows: int) -> list[int]:
    """Return how many rows each table gets: equal parts, and what shorter tables do not need goes to longer ones."""
    limits = [0] * len(counts)
    for position, index in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        limits[index] = min(counts[index], (rows - sum(limits)) // (len(counts) - position))
    return limits


_NODE_COLUMNS = ["node", "devices", "held", "util", "memory", "power", "temp", "why"]
_ACTIVITY_COLUMNS = ["sm", "tensor", "mem bw"]
_COUNTER_COLUMNS = ["network", "rdma", "pcie", "nvlink", "xgmi", "ecc", "xid"]
"""Received and sent bytes, corrected and uncorrected errors, and XIDs."""
_DEVICE_COLUMNS = [
    *("device", "util", "memory", "power", "temp", "claim", "product", "mem util"),
    *(*_ACTIVITY_COLUMNS, "clock", "throttled", *_COUNTER_COLUMNS),
]
_CLAIM_COLUMNS = [
    *("claim", "device", "util", "memory", "power", "temp", "idle"),
    *(*_ACTIVITY_COLUMNS, "energy", *_COUNTER_COLUMNS),
]


def _node_cells(one: NodeValues) -> list[object]:
    is_read = not one.problem
    return [
        one.node,
        one.devices if is_read else None,
        one.held if is_read else None,
        _percent(one.gpu_utilization_ratio),
        _gibibytes(one.memory_used_bytes, one.memory_limit_bytes),
        _rounded(one.power_watts, "W"),
        _rounded(one.temperature_celsius, "C"),
        one.problem,
    ]


def _device_cells(one: DeviceValues) -> list[object]:
    values = one.values
    return [
        one.device,
        _percent(values.gpu_utilization_ratio),
        _gibibytes(values.memory_used_bytes, values.memory_limit_bytes),
        _rounded(power_of(values), "W"),
        _rounded(values.temperature_celsius, "C"),
        ", ".join(one.claims),
        one.product,
        _percent(values.memory_utilization_ratio),
        *_activity(values),
        _rounded(None if values.sm_clock_hertz is None else values.sm_clock_hertz / 1e6, "MHz"),
        ", ".join(values.throttle_reasons or ()),
        *_counters(values),
    ]


def _claim_cells(one: ClaimValues) -> list[object]:
    from dra_agent.cli.age import duration

    values = one.values
    return [
        f"{one.namespace}/{one.name}",
        one.device,
        _percent(values.gpu_utilization_ratio),
        _gibibytes(values.memory_used_bytes, values.memory_limit_bytes),
        _rounded(power_of(values), "W"),
        _rounded(values.temperature_celsius, "C"),
        None if one.idle_seconds is None else duration(int(one.idle_seconds)),
        *_activity(values),
        None if values.energy_joules is None else f"{values.energy_joules / 1000:.1f}kJ",
        *_counters(values),
    ]


def power_of(values: DeviceSample) -> float | None:
    """Return the power, or its average since the sample before where the driver only counts energy."""
    return values.average_power_watts if values.power_watts is None else values.power_watts


def _activity(values: DeviceSample) -> list[object]:
    ratios = (values.sm_activity_ratio, values.tensor_activity_ratio, values.memory_bandwidth_ratio)
    return [_percent(ratio) for ratio in ratios]


def _counters(values: DeviceSample) -> list[object]:
    ecc = (values.ecc_corrected_errors, values.ecc_uncorrected_errors)
    return [
        _gibibytes(values.network_receive_bytes, values.network_transmit_bytes),
        _gibibytes(values.rdma_receive_bytes, values.rdma_transmit_bytes),
        _gibibytes(values.pcie_receive_bytes, values.pcie_transmit_bytes),
        _gibibytes(values.nvlink_receive_bytes, values.nvlink_transmit_bytes),
        _gibibytes(values.xgmi_read_bytes, values.xgmi_write_bytes),
        None if ecc == (None, None) else "/".join("?" if count is None else f"{count:.0f}" for count in ecc),
        _rounded(values.xid_errors, ""),
    ]


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio * 100:.0f}%"


def _rounded(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:.0f}{unit}"


def _gibibytes(*numbers: float | None) -> str | None:
    if all(number is None for number in numbers):
        return None
    return "/".join("?" if number is None else f"{number / (1 << 30):.1f}Gi" for number in numbers)


def _node_key(one: NodeValues, field: str) -> tuple[object, ...]:
    return (*_value_key(one, field), one.node)


def _device_key(one: DeviceValues, field: str) -> tuple[object, ...]:
    if field == "claim":
        return (not one.claims, one.claims, one.node, one.device)
    return (*_value_key(one.values, field), one.node, one.device)


def _claim_key(one: ClaimValues, field: str) -> tuple[object, ...]:
    name = (one.namespace, one.name, one.node, one.device)
    if field == "device":
        return (one.node, one.device, *name)
    if field == "node":
        return (one.node, *name)
    if field == "idle":
        return (one.idle_seconds is None, -(one.idle_seconds or 0.0), *name)
    return (*_value_key(one.values, field), *name)


def _value_key(values: DeviceSample | NodeValues, field: str) -> tuple[object, ...]:
    value = {
        "utilization": values.gpu_utilization_ratio,
        "memory": values.memory_used_bytes,
        "power": values.power_watts if isinstance(values, NodeValues) else power_of(values),
        "temperature": values.temperature_celsius,
    }.get(field)
    return (value is None, -(value or 0))


def _sorted(rows: Sequence[_T], key: Callable[[_T], Any]) -> list[_T]:
    return sorted(rows, key=key)
