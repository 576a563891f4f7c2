"""`dra-agent claim holders|usage|release`: the claims that hold devices, on this host or in a whole cluster.

`dra-agent claims`, `claims --usage` and `claims release` are earlier spellings of the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dra_agent.cli.flags import add_namespace_flags, add_watch_flag, chosen_namespace, in_namespace
from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import Parser, examples

if TYPE_CHECKING:
    from pathlib import Path

    from dra_agent.cli.table import Rows
    from dra_agent.kube_client import ApiClient

Item = dict[str, Any]

RELEASE = """\
Unprepare a claim on this node, and free its devices. Refused while the claim exists in the API
server and has these devices, while one of its pods runs or a process has one of the devices open, or while one of these
is not known; --force releases it anyway. In Kubernetes mode; without Kubernetes use `dra-agent claim delete`."""
RELEASE_CODES = "Exit 0: released. 1: not released, with the reason in the message."
EPILOG = """
On a node the claims are those that are prepared there. With --kubeconfig, or in a pod of the cluster, the API server is
asked which pods they are reserved for. --all-nodes asks the API server for all claims that are allocated anywhere.
"""
USAGE_EPILOG = """
Reads the counters of the driver or the kernel for each claim, as root on the node.
"""
_HOLDERS_EXAMPLES = (
    ("claim holders", "the devices that claims hold on this host"),
    ("claim holders -n team-a -o cdi", "the CDI ids of a namespace, for scripts"),
    ("claim holders --all-nodes", "the claims of the whole cluster"),
)
_USAGE_EXAMPLES = (("claim usage", "the memory that each claim uses now on its devices"),)
_OLD_EXAMPLES = (
    ("claims", "as `dra-agent claim holders`"),
    ("claims --usage", "as `dra-agent claim usage`"),
)
_RELEASE_EXAMPLES = (
    ("claim release team-a/train", "free the devices of a claim that was deleted"),
    ("claim release 5478b5d9-ddeb-4099-94aa-a5aa610ff27d --force", "by uid, even if a process uses them"),
)
_OLD_RELEASE_EXAMPLES = (("claims release team-a/train", "as `dra-agent claim release`"),)


def add_arguments(parser: Parser) -> None:
    """Define the flags of the earlier spelling."""
    parser.epilog = examples(*_OLD_EXAMPLES) + EPILOG
    parser.add_argument("--usage", action="store_true", help="the memory that each claim uses now on its devices")
    parser.add_argument("--simulate", metavar="PROFILE", help="with --usage: the simulated host that the agent runs on")
    _add_holder_flags(parser)
    parser.add_commands(dest="verb", metavar="VERB", required=False)
    release = _add_release(parser, _OLD_RELEASE_EXAMPLES)
    for action in release.arguments:
        if action.option_strings and action.dest not in ("help", "force"):
            action.default = argparse.SUPPRESS


def add_verbs(parser: Parser) -> None:
    """Define the verbs of `dra-agent claim` about devices that claims hold."""
    from dra_agent.cli.connection import add_connection_flags

    holders = parser.add_command(
        "holders",
        "show each device that a claim holds, of this host or of a cluster",
        epilog=examples(*_HOLDERS_EXAMPLES) + EPILOG,
    )
    _add_holder_flags(holders)
    usage = parser.add_command(
        "usage",
        "show the memory that each claim uses now on its devices",
        epilog=examples(*_USAGE_EXAMPLES) + USAGE_EPILOG,
    )
    usage.add_argument("--simulate", metavar="PROFILE", help="the simulated host that the agent runs on")
    add_namespace_flags(usage, default="every namespace", every=True)
    add_connection_flags(usage, cluster=True)
    add_output_flag(usage)
    _add_release(parser, _RELEASE_EXAMPLES)


def _add_holder_flags(parser: argparse.ArgumentParser) -> None:
    from dra_agent.cli.connection import add_connection_flags

    parser.add_argument("--all-nodes", action="store_true", help="the claims of the whole cluster, from the API server")
    add_namespace_flags(parser, default="every namespace", every=True)
    add_watch_flag(parser)
    add_connection_flags(parser, cluster=True)
    add_output_flag(parser, cdi=True)


def _add_release(parser: Parser, shown: tuple[tuple[str, str], ...]) -> Parser:
    from dra_agent.cli.connection import add_connection_flags

    release = parser.add_command(
        "release",
        "release a prepared claim that no longer exists or has other devices",
        description=RELEASE,
        epilog=f"{examples(*shown)}\n{RELEASE_CODES}",
    )
    release.add_argument("claim", metavar="CLAIM", help="NAME, NAMESPACE/NAME or uid, as they are listed here")
    release.add_argument("--force", action="store_true", help="even if the claim exists, or a process uses its devices")
    add_connection_flags(release)
    add_output_flag(release, names=False)
    return release


def run(args: argparse.Namespace) -> int:
    """Print one row for each device that a claim holds, or release a claim."""
    from dra_agent.agent.config import load_config
    from dra_agent.presence import may_exist
    from dra_agent.standalone.protocol import SOCKET

    if args.verb == "release":
        return _release(args)
    if not getattr(args, "all_nodes", False):
        _refuse_cluster_flags(args)
    if args.verb == "usage" or getattr(args, "usage", False):
        from dra_agent.cli.usage import print_usage

        return print_usage(args)
    if args.all_nodes:
        from dra_agent.agent.distributions import CLUSTER, load

        cluster = load(CLUSTER, "cli.cluster_claims", "--all-nodes")
        code: int = cluster.print_cluster(args, namespace=chosen_namespace(args))
        return code
    config = load_config(args)
    if may_exist(config.state_dir / SOCKET) or not may_exist(config.state_dir / "ledger"):
        return _print_standalone(args)
    return print_node(args)


def _refuse_cluster_flags(args: argparse.Namespace) -> None:
    """Raise UsageError for flags of an API server that the agent of this host does not use."""
    from dra_agent.agent.config import load_config
    from dra_agent.errors import UsageError
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET

    flag = next((flag for flag in ("kubeconfig", "context") if getattr(args, flag) is not None), None)
    if flag is None:
        return
    config = load_config(args)
    if exists(config.state_dir / SOCKET) or config.standalone:
        raise UsageError(
            "the agent of this host runs without Kubernetes",
            where=f"--{flag}",
            hint="leave it out, or list the claims of a cluster with --all-nodes",
        )


def print_holders(
    args: argparse.Namespace, fetch: Callable[[], list[Item]], table: Rows, cells: Callable[[Item], list[object]]
) -> int:
    """Print devices that claims hold in the chosen format, with --watch as they change."""
    from dra_agent.cli.output import ID_FORMATS, emit, emit_ids
    from dra_agent.cli.watch import watch

    def show(items: list[Item]) -> None:
        if args.output in ID_FORMATS:
            emit_ids((name for item in items for name in item.get("cdi_device_ids") or ()), args.output)
        elif args.output != "table":
            emit(items, args.output)
        else:
            table.write(map(cells, items))

    if args.watch:
        watch(
            fetch,
            show,
            output=args.output,
            identity=_identity,
            gone=lambda item: {**item, "state": "released", "reason": ""},
        )
    show(fetch())
    return 0


def _claim_of(cells: Sequence[object]) -> str:
    """Return the name of a row of a node: its claim, which other commands take."""
    return str(cells[1])


def nothing_held(namespace: str | None) -> str:
    """Return the message without any row."""
    return "no claim holds a device" + in_namespace(namespace)


def _identity(item: Item) -> object:
    return item["uid"], item["pool"], item["device"], item.get("share_id")


def _state(item: Item) -> str:
    return f"{item['state']}: {item['reason']}" if item["reason"] else str(item["state"])


def _release(args: argparse.Namespace) -> int:
    from dra_agent.agent.config import load_config
    from dra_agent.cli.output import emit
    from dra_agent.errors import UsageError
    from dra_agent.presence import exists
    from dra_agent.standalone.protocol import SOCKET
    from dra_agent.status.release_socket import Release, call

    state_dir = load_config(args).state_dir
    if exists(state_dir / SOCKET):
        raise UsageError("the agent here runs without Kubernetes", hint="use `dra-agent claim delete NAME`")
    done = call(state_dir, Release(_full_name(state_dir, args.claim), args.force))
    if args.output != "table":
        emit(done, args.output)
        return 0
    existence = {True: "still exists", False: "no longer exists", None: "is not known to exist"}[done["exists"]]
    print(f"{done['namespace']}/{done['name']} (uid {done['uid']}) {existence} in the API server")
    print(f"released {', '.join(done['devices'])}")
    return 0


def _full_name(state_dir: Path, word: str) -> str:
    """Return NAMESPACE/NAME of a prepared claim, or its uid."""
    from dra_agent.cli.object_names import CLAIM, parse
    from dra_agent.errors import UsageError
    from dra_agent.prepare.ledger_reader import read_copy

    named = parse(word, kinds=(CLAIM,))
    if named.namespace is not None:
        return f"{named.namespace}/{named.name}"
    entries, _ = read_copy(state_dir) or ([], None)
    found = sorted({entry.full_name for entry in entries if entry.name == named.name})
    if len(found) > 1:
        raise UsageError("claims of several namespaces have this name", where=word, hint=" or ".join(found))
    return found[0] if found else named.name


def _print_standalone(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.cli.table import Rows

    namespace = chosen_namespace(args)

    def fetch() -> list[Item]:
        with connect(args) as agent:
            claims = [*agent.claims(allocated=True, whole=False)]
        return [
            {
                "device": device["device"],
                "pool": device["pool"],
                "share_id": device["share_id"],
                "namespace": claim["namespace"],
                "claim": claim["name"],
                "uid": claim["uid"],
                "requests": device["requests"],
                "cdi_device_ids": device["cdi_device_ids"],
                "since": claim["prepared"] or None,
                "state": claim["phase"].lower(),
                "reason": claim["message"],
            }
            for claim in claims
            if namespace in (None, claim["namespace"])
            for device in claim["devices"]
        ]

    columns = ["device", "claim", "request", "state", "since", "cdi id"]
    table = Rows(
        columns,
        optional=("since", "request", "cdi id"),
        prose=("state",),
        named=_claim_of,
        empty=nothing_held(namespace),
    )

    def cells(row: Item) -> list[object]:
        claim = f"{row['namespace']}/{row['claim']}"
        ids = "\n".join(row["cdi_device_ids"])
        return [row["device"], claim, ", ".join(row["requests"]), _state(row), row["since"], ids]

    return print_holders(args, fetch, table, cells)


def print_node(args: argparse.Namespace) -> int:
    """Print the claims of this node's ledger, with their state in the API server if one is configured."""
    from dra_agent.agent.config import load_config
    from dra_agent.cli.connection import call_cluster, has_cluster
    from dra_agent.cli.table import Rows
    from dra_agent.prepare.ledger_reader import read_copy
    from dra_agent.prepare.record import read

    namespace, asks_cluster = chosen_namespace(args), has_cluster(args)

    def fetch() -> list[Item]:
        entries, _ = read_copy(load_config(args).state_dir) or ([], None)
        entries = [entry for entry in entries if namespace in (None, entry.namespace)]
        found = call_cluster(args, lambda api: _uses(api, entries)) if asks_cluster and entries else {}
        unusable = _unusable(args) if entries else {}
        return [
            {
                "device": device.device,
                "pool": device.pool,
                "share_id": device.share_id,
                "namespace": entry.namespace,
                "claim": entry.name,
                "uid": entry.uid,
                "state": "being prepared"
                if entry.state != "completed"
                else "unhealthy"
                if (device.pool, device.device) in unusable
                else "prepared",
                "reason": unusable.get((device.pool, device.device), ""),
                "requests": device.requests,
                "cdi_device_ids": device.cdi_device_ids,
                "used_by": found.get(entry.uid),
            }
            for entry in entries
            if (record := read(entry)) is not None
            for device in record.devices
        ]

    columns = ["device", "claim", "request", "state", *(["used by"] if asks_cluster else []), "cdi id"]
    table = Rows(
        columns, optional=("request", "cdi id"), prose=("state",), named=_claim_of, empty=nothing_held(namespace)
    )

    def cells(row: Item) -> list[object]:
        claim = f"{row['namespace']}/{row['claim']}"
        used_by = ["\n".join(row["used_by"] or ())] if asks_cluster else []
        ids = "\n".join(row["cdi_device_ids"])
        return [row["device"], claim, ", ".join(row["requests"]), _state(row), *used_by, ids]

    return print_holders(args, fetch, table, cells)


def _unusable(args: argparse.Namespace) -> dict[tuple[str, str], str]:
    """Return why devices of claims are unusable, by pool and name; empty, with a warning, if no agent responds."""
    import sys

    from dra_agent.agent.config import load_config
    from dra_agent.errors import AgentError
    from dra_agent.status.release_socket import Health, call

    try:
        return {(row["pool"], row["device"]): row["reason"] for row in call(load_config(args).state_dir, Health())}
    except AgentError as error:
        print(f"warning: whether devices of claims can be used is not known: {error}", file=sys.stderr)
        return {}


async def _uses(api: ApiClient, entries: list[Any]) -> dict[str, list[str]]:
    """Return the pods that each claim is reserved for, by uid; one `get` each, which a node's credentials allow."""
    import asyncio

    from dra_agent.errors import AgentError
    from dra_agent.explain.object_state import claim_state
    from dra_agent.kube_client import RESOURCE_CLAIMS, NotFoundError

    async def one(entry: Any) -> list[str]:
        try:
            claim = await api.get(RESOURCE_CLAIMS, entry.name, entry.namespace)
        except NotFoundError:
            return ["none: the claim was deleted from the API server"]
        except AgentError as error:
            return [f"not known: {error.message}"]
        if claim["metadata"].get("uid") != entry.uid:
            return ["none: the API server has another claim of this name"]
        return claim_state(claim)["reserved_for"] or ["none"]

    return dict(zip((entry.uid for entry in entries), await asyncio.gather(*map(one, entries)), strict=True))
