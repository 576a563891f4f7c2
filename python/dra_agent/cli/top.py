"""`dra-agent top`: what the devices of this host, or of a cluster, and the claims on them use now."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from dra_agent.cli.output import add_output_flag, prints_names
from dra_agent.cli.parser import Parser, examples

if TYPE_CHECKING:
    from dra_agent.agent.config import Config
    from dra_agent.cli.top_tables import Screen, Shown
    from dra_agent.telemetry.control import CurrentValues

DEFAULT_INTERVAL_S = 2.0
CLUSTER_INTERVAL_S = 15.0
"""Default for a cluster, where each refresh is a request to every agent."""
MIN_INTERVAL_S = 0.1
DEFAULT_NAMESPACE = "dra-agent"
"""The namespace in which the documentation and the manifests install the agent."""
DIRECT_FLAGS = ("metrics_ca", "metrics_server_name", "metrics_token_file")
SORTS = ("node", "device", "claim", "utilization", "memory", "power", "temperature", "idle")
SHOWS = ("all", "nodes", "devices", "claims")
EXAMPLES = (
    ("top --sort utilization", "the busiest first"),
    ("top --once --sort idle", "claims that do not use their GPU, once"),
    ("top -o json", "all values, for programs"),
)
EPILOG = (
    examples(
        ("top", "devices and claims, live on a terminal; Ctrl-C ends it"),
        *EXAMPLES,
        ("top --all-nodes --show nodes --once", "one row for each node of a cluster"),
    )
    + """
The agent samples at `interval` of its section [telemetry], not for this command. A value that is not known is a dash.
A claim that holds a device alone has its values; one that shares a device has its memory and
utilization at most.
"""
)


def add_arguments(parser: Parser) -> None:
    """Define the flags."""
    from dra_agent.cli.connection import add_connection_flags

    parser.epilog = EPILOG
    parser.add_argument("--all-nodes", action="store_true", help="every agent of a cluster, by their /metrics")
    add_display_flags(parser)
    add_connection_flags(parser, cluster=True)
    add_cluster_flags(parser)
    add_output_flag(parser)


def add_display_flags(parser: argparse.ArgumentParser) -> None:
    """Define the flags that choose rows and their order."""
    parser.add_argument(
        "--sort",
        choices=SORTS,
        default="device",
        metavar="FIELD",
        help=f"order of the rows: {', '.join(SORTS)}; values from high to low, unknown ones last (default device)",
    )
    parser.add_argument(
        "--show",
        choices=SHOWS,
        default="all",
        metavar="TABLE",
        help=f"only this table: {', '.join(SHOWS)}; nodes are those of a cluster (default all)",
    )
    parser.add_argument("--once", action="store_true", help="print once, which is the default without a terminal")
    parser.add_argument(
        "--interval",
        type=_interval,
        metavar="SECONDS",
        help=f"seconds between two requests (default {DEFAULT_INTERVAL_S:g}, {CLUSTER_INTERVAL_S:g} for a cluster); "
        "without a terminal: continue, and print the values as they change",
    )


def add_cluster_flags(parser: Parser) -> None:
    """Define the flags that choose agents and protect the connections to them."""
    group = parser.add_flag_group("agents of a cluster")
    group.add_argument("--node", metavar="NODE", help="only the agents of this node")
    group.add_argument(
        "--agent-namespace",
        action="append",
        metavar="NAMESPACE",
        help=f"namespace of the agents' pods (default {DEFAULT_NAMESPACE}); may be repeated",
    )
    group.add_argument(
        "--direct",
        action="store_true",
        help="connect to the addresses of the pods instead of through the API server, for /metrics with a token",
    )
    group.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="[NODE=]URL",
        help="read this address instead of the agents' pods; may be repeated",
    )
    group.add_argument("--metrics-ca", metavar="FILE", help="authority of the certificates of direct connections")
    group.add_argument("--metrics-server-name", metavar="NAME", help="name in these certificates")
    group.add_argument("--metrics-token-file", metavar="FILE", help="file with the token for direct connections")


def run(args: argparse.Namespace) -> int:
    """Print the tables, once or until the command is interrupted."""
    from dra_agent.agent.config import load_config
    from dra_agent.agent.distributions import CLUSTER, load

    if is_of_cluster(args):
        cluster = load(CLUSTER, "cli.top_cluster", "top of a cluster")
        return show(lambda: cluster.read_cluster(args), args, CLUSTER_INTERVAL_S)
    config = load_config(args)
    return show(lambda: _shown(_fetch(config)), args, DEFAULT_INTERVAL_S)


def is_of_cluster(args: argparse.Namespace) -> bool:
    """Return whether the flags ask for agents of a cluster; raises UsageError for flags that need --all-nodes."""
    from dra_agent.errors import UsageError

    if args.all_nodes or args.endpoint:
        return True
    for flag in ("kubeconfig", "context", "node", "agent_namespace", "direct", *DIRECT_FLAGS):
        if getattr(args, flag):
            raise UsageError("needs --all-nodes or --endpoint", where=f"--{flag.replace('_', '-')}")
    return False


def show(fetch: Callable[[], Shown], args: argparse.Namespace, interval_s: float) -> int:
    """Print what `fetch` returns, once or until the command is interrupted; 1 if no node of a cluster responded."""
    from dra_agent.cli.terminal import is_terminal

    live = not args.once and args.output == "table" and not prints_names() and is_terminal()
    if live:
        _refresh(fetch, args, interval_s)
    if args.interval is not None and not args.once:
        _repeat(fetch, args)
    shown = fetch()
    _print(shown, args)
    return 1 if shown.document.get("responded") == 0 else 0


def _fetch(config: Config) -> CurrentValues:
    from dra_agent.agent.about import RunningAgent
    from dra_agent.agent.about import query as query_agent
    from dra_agent.errors import PermanentError, RetryableError
    from dra_agent.telemetry.control import query

    try:
        return query(config.state_dir)
    except RetryableError as error:
        agent = query_agent(config)
        if not isinstance(agent, RunningAgent):
            raise RetryableError(f"what devices use is not known: {agent.reason}") from None
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


def _refresh(fetch: Callable[[], Shown], args: argparse.Namespace, interval_s: float) -> NoReturn:
    """Show a screen that is replaced at each interval; the terminal's content comes back at the end."""
    import sys
    import time

    from dra_agent.cli.terminal import console
    from dra_agent.cli.top_tables import Screen

    screen = console()
    current = fetch()  # an error is printed where the user sees it afterwards
    screen.set_alt_screen(True)
    try:
        while True:
            screen.clear()
            _print(current, args, Screen(screen.height, screen.width))
            sys.stdout.flush()
            time.sleep(interval_s if args.interval is None else args.interval)
            current = fetch()
    finally:
        screen.set_alt_screen(False)


def _repeat(fetch: Callable[[], Shown], args: argparse.Namespace) -> NoReturn:
    """Print the values, and again when a sample has other ones."""
    from dra_agent.cli.top_tables import document_of
    from dra_agent.cli.watch import watch

    latest: list[Shown] = []

    def items() -> list[dict[str, Any]]:
        latest[:] = [fetch()]
        shown = latest[0]
        content = (tuple(shown.nodes or ()), tuple(shown.devices), tuple(shown.claims), tuple(shown.failures))
        return [{"content": content, "has_sample": shown.document.get("age_seconds") is not None}]

    watch(
        items,
        lambda _: _print(latest[0], args),
        output=args.output,
        identity=lambda item: "values",
        gone=lambda item: item,
        document=lambda _: document_of(latest[0], sort=args.sort, show=args.show),
        interval_s=args.interval,
    )


def _shown(current: CurrentValues) -> Shown:
    from dra_agent.cli.top_tables import Shown

    every = f"every {current.interval_seconds:g} s"
    age = (
        "no current sample; the agent samples"
        if current.age_seconds is None
        else (f"sampled {max(0.0, current.age_seconds):.0f} s ago,")
    )
    return Shown(
        title=f"host {current.node}: {age} {every}",
        devices=current.devices,
        claims=current.claims,
        failures=[f"incomplete: {one.device}: {one.source}: {one.message}" for one in current.failures],
        document={
            "node": current.node,
            "interval_seconds": current.interval_seconds,
            "age_seconds": current.age_seconds,
            "failures": current.failures,
        },
    )


def _print(shown: Shown, args: argparse.Namespace, screen: Screen | None = None) -> None:
    from dra_agent.cli.output import emit
    from dra_agent.cli.top_tables import document_of, print_tables

    if args.output == "table":
        print_tables(shown, sort=args.sort, show=args.show, screen=screen)
    else:
        emit(document_of(shown, sort=args.sort, show=args.show), args.output)


def _interval(text: str) -> float:
    from dra_agent.cli.flags import seconds

    value = seconds(text)
    if value < MIN_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text} is less than {MIN_INTERVAL_S:g} seconds")
    return value
