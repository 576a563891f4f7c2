"""`dra-agent claim list|get|wait`: claims of the running agent, once or as they change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dra_agent.cli.claim import explain_command, key_of
from dra_agent.cli.flags import chosen_namespace, in_namespace

if TYPE_CHECKING:
    from dra_agent.cli.object_names import ObjectName
    from dra_agent.cli.table import Rows
    from dra_agent.standalone.protocol import Client


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    if args.verb == "wait":
        return _wait(args)
    if args.verb == "get":
        return _get(args) if args.name else _list(args, chosen_namespace(args))
    if args.classes:
        return _classes(args)
    if _is_cluster_node(args):
        from dra_agent.cli import claims

        args.kubeconfig = None
        return claims.print_node(args)
    return _list(args, chosen_namespace(args))


def _is_cluster_node(args: argparse.Namespace) -> bool:
    """Return True if a kubelet manages the claims here: a ledger exists, and no agent runs in standalone mode."""
    from dra_agent.agent.config import load_config
    from dra_agent.presence import may_exist
    from dra_agent.standalone.protocol import SOCKET

    state_dir = load_config(args).state_dir
    return not may_exist(state_dir / SOCKET) and may_exist(state_dir / "ledger")


def _list(args: argparse.Namespace, namespace: str | None) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import ID_FORMATS

    whole = args.output != "table" and args.output not in ID_FORMATS

    def fetch() -> list[dict[str, Any]]:
        with connect(args) as agent:
            return [view for view in agent.claims(whole=whole) if namespace in (None, view["namespace"])]

    return _show(args, fetch, empty="no claims" + in_namespace(namespace))


def _classes(args: argparse.Namespace) -> int:
    from dra_agent.cli.age import age
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import ID_FORMATS, emit
    from dra_agent.cli.table import table
    from dra_agent.errors import UsageError
    from dra_agent.standalone.protocol import ListClasses

    flag = "--watch" if args.watch else f"-o {args.output}" if args.output in ID_FORMATS else None
    if flag is not None:
        raise UsageError("is for claims", where=flag, hint="leave it out, or leave out --classes")

    with connect(args) as agent:
        items = agent.call(ListClasses())
    if args.output in ("json", "yaml"):
        emit(items, args.output)
        return 0
    rows = ([c["metadata"]["name"], age(c["metadata"].get("creationTimestamp")), _selectors(c)] for c in items)
    table(["name", "age", "selectors"], rows, prose=("selectors",), empty="no classes")
    return 0


def _selectors(device_class: dict[str, Any]) -> str:
    selectors = device_class["spec"].get("selectors", [])
    return "\n".join(s["cel"]["expression"].strip() for s in selectors if "cel" in s)


def _get(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.errors import UsageError

    if args.all_namespaces:
        raise UsageError("a name and every namespace", where="-A", hint="name its namespace with -n")
    named = _names(args)

    def fetch() -> list[dict[str, Any]]:
        with connect(args) as agent:
            return [view for name in named if (view := _view(agent, args, name)) is not None]

    return _show(args, fetch, alone=len(named) == 1)


def _names(args: argparse.Namespace) -> list[ObjectName]:
    from dra_agent.cli.object_names import CLAIM, parse

    return [parse(word, kinds=(CLAIM,)) for word in args.name]


def _view(agent: Client, args: argparse.Namespace, named: ObjectName) -> dict[str, Any] | None:
    from dra_agent.errors import NoSuchObjectError
    from dra_agent.standalone.protocol import Get

    try:
        view: dict[str, Any] = agent.call(Get(*key_of(agent, named, args.namespace)))
    except NoSuchObjectError:
        if args.ignore_not_found:
            return None
        raise
    return view


def _wait(args: argparse.Namespace) -> int:
    import time

    from dra_agent.cli.connection import connect
    from dra_agent.cli.terminal import progress
    from dra_agent.standalone.protocol import Get

    end = time.monotonic() + args.timeout
    with connect(args) as agent, progress(f"waiting for claim {', '.join(args.name)}"):
        views = [
            agent.call(Get(*key_of(agent, named, args.namespace), max(0.0, end - time.monotonic())))
            for named in _names(args)
        ]
    args.watch = False
    _show(args, lambda: views, alone=len(views) == 1)
    return 0 if all(view["phase"] == "Prepared" for view in views) else 1


def _show(args: argparse.Namespace, fetch: Any, *, alone: bool = False, empty: str = "") -> int:
    """Print claims in the chosen format; `alone`: a single named claim, with the CDI ids for a container.

    `empty` is the message without any claim; none is printed for named claims that do not exist and are ignored.
    """
    from dra_agent.cli.output import ID_FORMATS, emit, emit_ids
    from dra_agent.cli.table import Rows
    from dra_agent.cli.watch import watch

    rows = Rows(
        ["namespace", "name", "phase", "age", "devices", "why", "uid", "CDI ids"],
        optional=("age",),
        wide=("uid", "CDI ids"),
        prose=("why",),
        empty=empty,
        named=lambda row: f"{row[0]}/{row[1]}",
    )

    def show(views: list[dict[str, Any]]) -> None:
        if args.output in ID_FORMATS:
            emit_ids((name for view in views for name in view["cdi_device_ids"]), args.output)
        elif args.output != "table":
            emit(views[0] if views and alone else views, args.output)
        else:
            _print(rows, views, alone=alone)

    if args.watch:
        watch(
            fetch,
            show,
            output=args.output,
            identity=lambda view: view["uid"],
            gone=lambda view: {**view, "phase": "Deleted"},
        )
    show(fetch())
    return 0


def _print(rows: Rows, views: list[dict[str, Any]], *, alone: bool) -> None:
    from dra_agent.cli.output import prints_names

    rows.write(map(_row, views))
    if prints_names():
        return
    for view in views if alone else ():
        for name in view["cdi_device_ids"]:
            print(f"--device {name}")
    sys.stdout.flush()
    for line in _hints(views):
        print(line, file=sys.stderr)


def _row(view: dict[str, Any]) -> list[object]:
    from dra_agent.cli.age import age

    devices = "\n".join(device["device"] for device in view["devices"])
    ids = "\n".join(view["cdi_device_ids"])
    created = age(view["created"])
    return [view["namespace"], view["name"], view["phase"], created, devices, view["message"], view["uid"], ids]


def _hints(views: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Name the command that shows why the first claim waits."""
    pending = [view for view in views if view["phase"] == "Pending"]
    if pending:
        more = "" if len(pending) == 1 else f", the first of {len(pending)} pending claims"
        yield f"why: {explain_command(pending[0])}{more}"
