"""`dra-agent reclaim start|cancel|status`: starts, cancels or shows the reclaim of this node."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dra_agent.cli import terminal
from dra_agent.cli.flags import seconds
from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, add_group_examples, examples

WATCH_INTERVAL_S = 0.5
"""Seconds between two queries of `status --watch`."""
MAX_DEADLINE_S = 7 * 86400
"""Bound of `start --in`, in seconds."""
MAX_NAMED_PODS = 3
"""Pods that are named in one line."""

_START_EXAMPLES = (
    ("reclaim start --in 2m --why maintenance", "release every claim within two minutes"),
    ("reclaim start --in 120 --yes", "without a question on a terminal"),
    ("reclaim start --hint", "prevent new claims only"),
)
_CANCEL_EXAMPLES = (
    ("reclaim cancel", "cancel the notice of `reclaim start`"),
    ("reclaim cancel --all", "also dismiss the signals of clouds"),
)
_STATUS_EXAMPLES = (
    ("reclaim status", "is this node being reclaimed, and why"),
    ("reclaim status --watch", "wait until every claim is released; exit 1 if the time ran out"),
)


def add_arguments(parser: Parser) -> None:
    """Define the verbs."""
    from dra_agent.cli.connection import add_connection_flags

    parser.add_commands(dest="verb", metavar="VERB")
    start = parser.add_command("start", "release every claim of this host", epilog=examples(*_START_EXAMPLES))
    start.add_argument(
        "--in",
        dest="seconds",
        type=partial(seconds, maximum_s=MAX_DEADLINE_S),
        metavar="SECONDS",
        help="time until the host is terminated, such as 120 or 2m",
    )
    start.add_argument("--hint", action="store_true", help="only prevent new claims")
    start.add_argument("-y", "--yes", action="store_true", help="start without confirmation on a terminal")
    start.add_argument("--why", default="", metavar="TEXT", help="reason that is shown in events and status")
    cancel = parser.add_command("cancel", "cancel it", epilog=examples(*_CANCEL_EXAMPLES))
    cancel.add_argument(
        "--all", action="store_true", dest="everything", help="also dismiss the signals of clouds and other sources"
    )
    status = parser.add_command(
        "status",
        "show the active signals, their sources and the health of each source",
        epilog=examples(*_STATUS_EXAMPLES),
    )
    status.add_argument(
        "-w", "--watch", action="store_true", help="wait until every claim is released, or the host is terminated"
    )
    for verb in (start, cancel, status):
        add_connection_flags(verb)
        add_output_flag(verb, names=False)
    add_group_examples(parser)


def run(args: argparse.Namespace) -> int:
    """Send the request to the agent and show the resulting state."""
    from dra_agent.agent.config import load_config
    from dra_agent.cli.output import emit
    from dra_agent.reclaim.control import Cancel, Request, Start, Status, send_request
    from dra_agent.reclaim.status import source_note

    request: Request
    match args.verb:
        case "start":
            request = Start("hint" if args.hint else "notice", args.seconds, args.why)
        case "cancel":
            request = Cancel(args.everything)
        case _:
            request = Status()
    state_dir = load_config(args).state_dir
    if isinstance(request, Start) and not _is_confirmed(request.kind, args, state_dir):
        print("nothing was started", file=sys.stderr)
        return 1
    status = send_request(state_dir, request)
    if getattr(args, "watch", False):
        status = _watch(status, lambda: send_request(state_dir, request))
    note = source_note(status["sources"])
    if args.output == "table":
        _show(status)
    else:
        emit({**status, "notes": [] if note is None else [str(note)]}, args.output)
    # A reclaim that was started by hand needs no source.
    if note is not None and args.verb == "status" and (status["sources"] or status["phase"] == "none"):
        sys.stdout.flush()
        print(f"warning: {note}", file=sys.stderr)
    # An agent of an earlier version does not report it.
    if unsaved := status.get("unsaved"):
        print(f"warning: a restart of the agent would lose the last change: {unsaved}", file=sys.stderr)
        if args.verb in ("start", "cancel"):
            return 1
    # The request may have no effect yet: another source can still report a reclaim, and claims may not be released.
    if args.verb == "cancel":
        return 1 if status["phase"] in ("hint", "notice") else 0
    return 1 if getattr(args, "watch", False) and status["phase"] == "notice" and not status["complete"] else 0


def _is_confirmed(kind: str, args: argparse.Namespace, state_dir: Path) -> bool:
    """Print the pods that a reclaim evicts, and ask for confirmation on a terminal."""
    if kind == "hint":
        print("no new claims get devices of this node until `dra-agent reclaim cancel`", file=sys.stderr)
    else:
        _print_effect(state_dir)
    if args.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print("start? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _print_effect(state_dir: Path) -> None:
    from dra_agent.cli.agent_view import devices_of_claims
    from dra_agent.errors import AgentError

    try:
        held = sorted(claim for claim, _ in devices_of_claims(state_dir))
    except AgentError as error:
        print(f"the claims that this releases are not known: {error}", file=sys.stderr)
        return
    count = f"{len(held)} claim{'' if len(held) == 1 else 's'}"
    # Without Kubernetes there are no pods.
    pods = "" if _is_standalone(state_dir) else f", and evicts the pods that use {'it' if len(held) == 1 else 'them'}"
    effect = f"this releases {count} of this node{pods}"
    print(effect if held else "no claim holds a device of this node", file=sys.stderr)
    for name in held:
        print(f"  {name}", file=sys.stderr)


def _is_standalone(state_dir: Path) -> bool:
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET

    return exists(state_dir / SOCKET)


def _kept(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [claim for claim in status["claims"] if claim["state"] != "released"]


def _watch(status: dict[str, Any], fetch_status: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Show the progress until the reclaim is complete, is cancelled, or the deadline has passed.

    On a terminal it is a bar; in a file or pipe, a line for each change.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = terminal.console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rest]}", markup=False),
    )
    last_line = ""
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("claims released", total=None, rest="")
        while status["phase"] == "notice" and not status["complete"]:
            remaining_s = status["seconds_left"]
            if remaining_s is not None and remaining_s < 0:
                break
            total, kept = len(status["claims"]), _kept(status)
            waits = _waits(kept)
            rest = ", ".join(
                part for part in ("" if remaining_s is None else f"{remaining_s:.0f} s left", waits) if part
            )
            bar.update(task, total=total, completed=total - len(kept), rest=rest)
            line = f"{total - len(kept)} of {total} claims released" + (f", {waits}" if waits else "")
            if not console.is_terminal and line != last_line:
                last_line = line
                print(line, file=sys.stderr, flush=True)
            time.sleep(WATCH_INTERVAL_S)
            status = fetch_status()
    return status


def _waits(kept: list[dict[str, Any]]) -> str:
    """Return the names of the first pods that keep claims."""
    names = [" and ".join(claim["pods"]) or f"{claim['namespace']}/{claim['name']}" for claim in kept]
    first = list(dict.fromkeys(names))[:MAX_NAMED_PODS]
    return "" if not first else f"waits for {', '.join(first)}" + (" and others" if len(names) > MAX_NAMED_PODS else "")


def _show(status: dict[str, Any]) -> None:
    from dra_agent.cli.table import table

    print(_sentence(status))
    if status["claims"]:
        print()
        table(
            ["claim", "state", "seconds", "reserved for", "why"],
            (
                [f"{c['namespace']}/{c['name']}", c["state"], c["seconds"], ", ".join(c["pods"]), c["why"]]
                for c in status["claims"]
            ),
            prose=("reserved for", "why"),
        )
    if status["events"]:
        print()
        table(
            ["source", "kind", "event", "what", "deadline"],
            ([e["source"], e["kind"], e["event"], _description(e), e["deadline"]] for e in status["events"]),
            prose=("what",),
        )
    if status["sources"]:
        print()
        table(
            ["source", "reachable", "seconds ago", "failures", "why"],
            (
                [s["source"], _reachable(s["up"]), s["seconds_since_good"], s["failures"], s["why"]]
                for s in status["sources"]
            ),
            prose=("why",),
        )


def _sentence(status: dict[str, Any]) -> str:
    sentences = {
        "none": "no reclaim is active",
        "hint": "hint: the node may be reclaimed",
        "notice": "notice: the node is being reclaimed",
        "cancelled": "cancelled: the reclaim was withdrawn",
    }
    text: str = sentences[status["phase"]]
    remaining_s = status["seconds_left"]
    if status["phase"] != "notice":
        return text
    if remaining_s is None:
        return f"{text}, deadline unknown"
    when = f" in {remaining_s:.0f} s" if remaining_s >= 0 else f", its deadline was {-remaining_s:.0f} s ago"
    return text + when


def _description(event: dict[str, Any]) -> str:
    notes = [event["doubt"]] if event["doubt"] else []
    if event["silent_since"]:
        notes.append("its source is silent about it")
    return str(event["what"]) + "".join(f" ({note})" for note in notes)


def _reachable(up: bool | None) -> str:
    return "not yet" if up is None else "yes" if up else "no"
