"""`dra-agent claims`: who holds which device, of this host or of a whole cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dra_agent.cli.output import add_output_flag
from dra_agent.cli.parser import examples

if TYPE_CHECKING:
    from dra_agent.kube_client import ApiClient, Object

RELEASE = """\
Undo what the agent of this node prepared for a claim, and free its devices. Refused while the claim exists in the API
server, while a process has one of the devices open, or while the agent cannot see all processes of the host; --force
releases it all the same. In Kubernetes mode; without Kubernetes use `dra-agent claim delete`."""
RELEASE_CODES = "Exit 0: released. 1: not released, with the reason in the message."
EPILOG = """
On a node the claims are those that are prepared there. With --kubeconfig, or in a pod of the cluster, the API server is
asked which pods they are reserved for. --all-nodes asks the API server for all claims that are allocated anywhere.
--usage reads, as root on the node, what the driver or the kernel counts for each claim.
"""
_EXAMPLES = (
    ("claims", "the devices that claims hold on this host"),
    ("claims --usage", "how much memory of them each claim has now"),
    ("claims --all-nodes -n team-a", "those of a namespace of the whole cluster"),
)
_RELEASE_EXAMPLES = (
    ("claims release team-a/train", "free the devices of a claim that was deleted"),
    ("claims release 5478b5d9-ddeb-4099-94aa-a5aa610ff27d --force", "by uid, even if a process uses them"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the flags."""
    from dra_agent.cli.connection import add_connection_flags

    parser.epilog = examples(*_EXAMPLES) + EPILOG
    parser.add_argument("--all-nodes", action="store_true", help="the claims of the whole cluster, from the API server")
    parser.add_argument("--usage", action="store_true", help="how much memory of its devices each claim has now")
    parser.add_argument("--simulate", metavar="PROFILE", help="with --usage: the simulated host that the agent runs on")
    parser.add_argument("-n", "--namespace", help="only claims of this namespace")
    add_connection_flags(parser, cluster=True)
    add_output_flag(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=False)
    release = verbs.add_parser(
        "release",
        help="release a prepared claim that no longer exists",
        description=RELEASE,
        epilog=f"{examples(*_RELEASE_EXAMPLES)}\n{RELEASE_CODES}",
    )
    release.add_argument("claim", metavar="UID|NAMESPACE/NAME", help="as the command without a verb lists it")
    release.add_argument("--force", action="store_true", help="even if the claim exists, or a process uses its devices")
    add_connection_flags(release)
    add_output_flag(release)
    for action in release._actions:
        if action.option_strings and action.dest not in ("help", "force"):
            action.default = argparse.SUPPRESS


def run(args: argparse.Namespace) -> int:
    """Print one row for each device that a claim holds."""
    from dra_agent.agent.config import load_config
    from dra_agent.errors import UsageError
    from dra_agent.standalone.protocol import SOCKET

    if args.verb == "release":
        return _release(args)
    if args.usage:
        from dra_agent.cli.usage import print_usage

        return print_usage(args)
    if args.all_nodes:
        return _print_cluster(args)
    config = load_config(args)
    if args.kubeconfig is not None and ((config.state_dir / SOCKET).exists() or config.standalone):
        raise UsageError(
            "the agent of this host runs without Kubernetes",
            where="--kubeconfig",
            hint="leave it out, or list the claims of a cluster with --all-nodes",
        )
    if (config.state_dir / SOCKET).exists() or not (config.state_dir / "ledger").exists():
        return _print_standalone(args)
    return _print_node(args)


def _release(args: argparse.Namespace) -> int:
    from dra_agent.agent.config import load_config
    from dra_agent.cli.output import emit
    from dra_agent.errors import UsageError
    from dra_agent.printable import printable
    from dra_agent.standalone.protocol import SOCKET
    from dra_agent.status.release_socket import Release, call

    state_dir = load_config(args).state_dir
    if (state_dir / SOCKET).exists():
        raise UsageError("the agent here runs without Kubernetes", hint="use `dra-agent claim delete NAME`")
    done = call(state_dir, Release(args.claim, args.force))
    if args.output != "table":
        emit(done, args.output)
        return 0
    exists = {True: "still exists", False: "no longer exists", None: "is not known to exist"}[done["exists"]]
    print(printable(f"{done['namespace']}/{done['name']} (uid {done['uid']}) {exists} in the API server"))
    print(printable(f"released {', '.join(done['devices'])}"))
    return 0


def _print_standalone(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import emit, table
    from dra_agent.standalone.protocol import ListClaims

    with connect(args) as agent:
        claims = agent.call(ListClaims())
    rows = [
        {
            "device": device["device"],
            "pool": device["pool"],
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
        if args.namespace in (None, claim["namespace"])
        for device in claim["devices"]
    ]
    if args.output != "table":
        emit(rows, args.output)
        return 0
    table(
        ["device", "claim", "request", "state", "since", "cdi id"],
        (
            [
                row["device"],
                f"{row['namespace']}/{row['claim']}",
                ", ".join(row["requests"]),
                f"{row['state']}: {row['reason']}" if row["reason"] else row["state"],
                row["since"],
                "\n".join(row["cdi_device_ids"]),
            ]
            for row in rows
        ),
        optional=("since", "request", "cdi id"),
    )
    return 0


def _print_node(args: argparse.Namespace) -> int:
    """Return the claims of this node's ledger, with their state in the API server if one is configured."""
    from dra_agent.agent.config import load_config
    from dra_agent.cli.connection import call_cluster, has_cluster
    from dra_agent.cli.output import emit, table
    from dra_agent.prepare.ledger_reader import read_copy
    from dra_agent.prepare.record import read

    entries, _ = read_copy(load_config(args).state_dir) or ([], None)
    entries = [entry for entry in entries if args.namespace in (None, entry.namespace)]
    asks_cluster = has_cluster(args)
    found = call_cluster(args, lambda api: _uses(api, entries)) if asks_cluster and entries else {}
    unusable = _unusable(args)
    rows: list[dict[str, Any]] = [
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
    if args.output != "table":
        emit(rows, args.output)
        return 0
    table(
        ["device", "claim", "request", "state", *(["used by"] if asks_cluster else []), "cdi id"],
        (
            [
                row["device"],
                f"{row['namespace']}/{row['claim']}",
                ", ".join(row["requests"]),
                f"{row['state']}: {row['reason']}" if row["reason"] else row["state"],
                *(["\n".join(row["used_by"] or ())] if asks_cluster else []),
                "\n".join(row["cdi_device_ids"]),
            ]
            for row in rows
        ),
        optional=("request", "cdi id"),
    )
    return 0


def _unusable(args: argparse.Namespace) -> dict[tuple[str, str], str]:
    """Return why devices of claims are unusable, by pool and name; empty if no agent responds."""
    from dra_agent.agent.config import load_config
    from dra_agent.errors import AgentError
    from dra_agent.status.release_socket import SOCKET, Health, call

    state_dir = load_config(args).state_dir
    if not (state_dir / SOCKET).exists():
        return {}
    try:
        return {(row["pool"], row["device"]): row["reason"] for row in call(state_dir, Health())}
    except AgentError:
        return {}  # an agent that was killed leaves its socket; the claims are shown without it


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


def _print_cluster(args: argparse.Namespace) -> int:
    from dra_agent.cli.connection import call_cluster
    from dra_agent.cli.output import emit, table
    from dra_agent.kube_client import RESOURCE_CLAIMS

    async def listed(api: ApiClient) -> list[Object]:
        return (await api.list(RESOURCE_CLAIMS, namespace=args.namespace)).items

    rows = sorted(
        (row for claim in call_cluster(args, listed) for row in _rows(claim)),
        key=lambda row: (row["node"] or "", row["pool"], row["device"], row["namespace"], row["claim"]),
    )
    if args.output != "table":
        emit(rows, args.output)
        return 0
    table(
        ["node", "device", "driver", "claim", "request", "used by", "ready"],
        (
            [
                row["node"],
                row["device"],
                row["driver"],
                f"{row['namespace']}/{row['claim']}",
                row["request"],
                ", ".join(row["used_by"]) or "none",
                {True: "yes", False: f"no: {row['reason']}"}.get(row["ready"]),
            ]
            for row in rows
        ),
    )
    return 0


def _rows(claim: Object) -> list[dict[str, Any]]:
    from dra_agent.explain.object_state import claim_state

    found = claim_state(claim)
    return [
        {
            "node": found["node"],
            "device": device["device"],
            "pool": device["pool"],
            "driver": device["driver"],
            "share_id": device["share_id"],
            "namespace": claim["metadata"].get("namespace", "default"),
            "claim": claim["metadata"]["name"],
            "uid": claim["metadata"].get("uid"),
            "request": device["request"],
            "used_by": found["reserved_for"],
            "ready": device["ready"],
            "reason": device["reason"],
        }
        for device in found["devices"]
    ]
