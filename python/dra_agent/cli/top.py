"""`dra-agent top`: what the devices of this host and the claims on them use now, as the running agent sampled it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dra_agent.cli.output import add_output_flag, prints_names
from dra_agent.cli.parser import examples

if TYPE_CHECKING:
    from dra_agent.agent.config import Config
    from dra_agent.telemetry.control import ClaimValues, CurrentValues, DeviceValues
    from dra_agent.telemetry.model import DeviceSample

_T = TypeVar("_T")

DEFAULT_INTERVAL_S = 2.0
MIN_INTERVAL_S = 0.1
MAX_FAILURES = 3
"""Incomplete devices that are named below the tables."""
_OTHER_LINES = 9
"""Lines of a screen that are not rows: title, headings, empty lines, what is left out, failures."""
SORTS = ("device", "claim", "utilization", "memory", "power", "temperature", "idle")
EPILOG = (
    examples(
        ("top", "devices and claims, live on a terminal; Ctrl-C ends it"),
        ("top --sort utilization", "the busiest first"),
        ("top --once --sort idle", "claims that do not use their GPU, once"),
        ("top -o json", "all values, for programs"),
    )
    + """
The agent samples at `interval` of its section [telemetry], not for this command. A value that is not known is a dash.
Only a claim that holds a device alone has values: those of a shared device are not its own.
"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the flags."""
    from dra_agent.cli.connection import add_connection_flags

    parser.epilog = EPILOG
    parser.add_argument(
        "--sort",
        choices=SORTS,
        default="device",
        metavar="FIELD",
        help=f"order of the rows: {', '.join(SORTS)}; values from high to low, unknown ones last (default device)",
    )
    parser.add_argument("--once", action="store_true", help="print once, which is the default without a terminal")
    parser.add_argument(
        "--interval",
        type=_interval,
        metavar="SECONDS",
        help=f"seconds between two requests (default {DEFAULT_INTERVAL_S:g}); "
        "without a terminal: continue, and print the values as they change",
    )
    add_connection_flags(parser)
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print both tables, once or until the command is interrupted."""
    from dra_agent.agent.config import load_config
    from dra_agent.cli.output import is_terminal

    config = load_config(args)

    def fetch() -> CurrentValues:
        return _fetch(config)

    live = not args.once and args.output == "table" and not prints_names() and is_terminal()
    if live:
        _refresh(fetch, args)
    if args.interval is not None and not args.once:
        _repeat(fetch, args)
    _print(fetch(), args)
    return 0


def _fetch(config: Config) -> CurrentValues:
    from dra_agent.agent.about import query as query_agent
    from dra_agent.errors import PermanentError, RetryableError
    from dra_agent.telemetry.control import query

    try:
        return query(config.state_dir)
    except RetryableError as error:
        agent = query_agent(config)
        if agent is None:
            raise
        if not agent.config.telemetry.interval:
            raise PermanentError(
                "telemetry is off",
                where=f"agent with pid {agent.pid}",
                hint="add `interval = 15` in the section [telemetry] of its configuration file, and restart it",
            ) from None
        raise RetryableError(
            f"the agent does not report its telemetry: {error}",
            where=f"agent with pid {agent.pid}",
            hint="repeat the command if the agent is starting; otherwise see its log",
        ) from None


def _refresh(fetch: Callable[[], CurrentValues], args: argparse.Namespace) -> NoReturn:
    """Show a screen that is replaced at each interval; the terminal's content comes back at the end."""
    import sys
    import time

    from dra_agent.cli.output import console

    screen = console()
    current = fetch()  # an error is printed where the user sees it afterwards
    screen.set_alt_screen(True)
    try:
        while True:
            screen.clear()
            _print(current, args, max_rows=max(2, screen.height - _OTHER_LINES))
            sys.stdout.flush()
            time.sleep(DEFAULT_INTERVAL_S if args.interval is None else args.interval)
            current = fetch()
    finally:
        screen.set_alt_screen(False)


def _repeat(fetch: Callable[[], CurrentValues], args: argparse.Namespace) -> NoReturn:
    """Print the values, and again when a sample has other ones."""
    from dra_agent.cli.watch import watch

    latest: list[CurrentValues] = []

    def items() -> list[dict[str, Any]]:
        latest[:] = [fetch()]
        content = (latest[0].devices, latest[0].claims, latest[0].failures)
        return [{"content": content, "has_sample": latest[0].age_seconds is not None}]

    watch(
        items,
        lambda _: _print(latest[0], args),
        identity=lambda item: "values",
        gone=lambda item: item,
        interval_s=args.interval,
    )


def _print(current: CurrentValues, args: argparse.Namespace, max_rows: int | None = None) -> None:
    from dra_agent.cli.output import emit, table
    from dra_agent.printable import printable

    devices = _sorted(current.devices, lambda one: _device_key(one, args.sort))
    claims = _sorted(current.claims, lambda one: _claim_key(one, args.sort))
    if args.output != "table":
        emit({**_header(current), "devices": devices, "claims": claims, "failures": current.failures}, args.output)
        return
    if prints_names():
        table(["device"], [[one.device] for one in devices])
        return
    print(printable(_title(current), line=True))
    with _at_most(devices, claims, max_rows) as (shown_devices, shown_claims):
        print()
        table(
            ["device", "util", "memory", "power", "temp", "claim", "product", "mem util", "clock", "throttled"],
            (_device_cells(one) for one in shown_devices),
            optional=("claim", "temp", "power", "memory", "util"),
            wide=("product", "mem util", "clock", "throttled"),
        )
        print()
        table(
            ["claim", "device", "util", "memory", "power", "temp", "idle", "energy"],
            (_claim_cells(one) for one in shown_claims),
            optional=("temp", "power", "memory", "idle", "util"),
            wide=("energy",),
        )
    for failure in current.failures[:MAX_FAILURES]:
        print(printable(f"incomplete: {failure.device}: {failure.source}: {failure.message}", line=True))


@contextmanager
def _at_most(
    devices: Sequence[DeviceValues], claims: Sequence[ClaimValues], max_rows: int | None
) -> Iterator[tuple[Sequence[DeviceValues], Sequence[ClaimValues]]]:
    """Limit both tables to the rows of a screen, and print below how many are left out."""
    if max_rows is None:
        yield devices, claims
        return
    shown_devices = devices[: max(max_rows - len(claims), max_rows // 2)]
    shown_claims = claims[: max_rows - len(shown_devices)]
    yield shown_devices, shown_claims
    left_out = len(devices) - len(shown_devices) + len(claims) - len(shown_claims)
    if left_out:
        print(f"{left_out} more rows: `dra-agent top --once` prints all")


def _header(current: CurrentValues) -> dict[str, Any]:
    return {
        "node": current.node,
        "interval_seconds": current.interval_seconds,
        "age_seconds": current.age_seconds,
    }


def _title(current: CurrentValues) -> str:
    every = f"every {current.interval_seconds:g} s"
    if current.age_seconds is None:
        return f"host {current.node}: no current sample; the agent samples {every}"
    return f"host {current.node}: sampled {max(0.0, current.age_seconds):.0f} s ago, {every}"


def _device_cells(one: DeviceValues) -> list[object]:
    values = one.values
    return [
        one.device,
        _percent(values.gpu_utilization_ratio),
        _memory(values),
        _rounded(values.power_watts, "W"),
        _rounded(values.temperature_celsius, "C"),
        ", ".join(one.claims),
        one.product,
        _percent(values.memory_utilization_ratio),
        _rounded(None if values.sm_clock_hertz is None else values.sm_clock_hertz / 1e6, "MHz"),
        ", ".join(values.throttle_reasons or ()),
    ]


def _claim_cells(one: ClaimValues) -> list[object]:
    from dra_agent.cli.age import duration

    values = one.values
    return [
        f"{one.namespace}/{one.name}",
        one.device,
        _percent(values.gpu_utilization_ratio),
        _memory(values),
        _rounded(values.power_watts, "W"),
        _rounded(values.temperature_celsius, "C"),
        None if one.idle_seconds is None else duration(int(one.idle_seconds)),
        None if values.energy_joules is None else f"{values.energy_joules / 1000:.1f}kJ",
    ]


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio * 100:.0f}%"


def _rounded(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:.0f}{unit}"


def _memory(values: DeviceSample) -> str | None:
    used, limit = values.memory_used_bytes, values.memory_limit_bytes
    if used is None and limit is None:
        return None
    return "/".join("?" if number is None else f"{number / (1 << 30):.1f}Gi" for number in (used, limit))


def _device_key(one: DeviceValues, field: str) -> tuple[object, ...]:
    if field == "claim":
        return (not one.claims, one.claims, one.device)
    return (*_value_key(one.values, field), one.device)


def _claim_key(one: ClaimValues, field: str) -> tuple[object, ...]:
    name = (one.namespace, one.name, one.device)
    if field == "device":
        return (one.device, *name)
    if field == "idle":
        return (one.idle_seconds is None, -(one.idle_seconds or 0.0), *name)
    return (*_value_key(one.values, field), *name)


def _value_key(values: DeviceSample, field: str) -> tuple[object, ...]:
    value = {
        "utilization": values.gpu_utilization_ratio,
        "memory": values.memory_used_bytes,
        "power": values.power_watts,
        "temperature": values.temperature_celsius,
    }.get(field)
    return (value is None, -(value or 0))


def _sorted(rows: Sequence[_T], key: Callable[[_T], Any]) -> list[_T]:
    return sorted(rows, key=key)


def _interval(text: str) -> float:
    from dra_agent.cli.flags import seconds

    value = seconds(text)
    if value < MIN_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text} is less than {MIN_INTERVAL_S:g} seconds")
    return value
