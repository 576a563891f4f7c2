"""`dra-agent explain claim NAME` on a host without Kubernetes, from the running agent."""

from __future__ import annotations

import argparse
from typing import Any


def agent_without_cluster(args: argparse.Namespace) -> bool:
    """Return True if an agent runs here in standalone mode, and no cluster is named."""
    from dra_agent.agent.config import load_config
    from dra_agent.cli.connection import has_cluster
    from dra_agent.presence import exists, may_exist
    from dra_agent.standalone.protocol import SOCKET

    socket = load_config(args).state_dir / SOCKET
    return args.kubeconfig is None and (exists(socket) or (may_exist(socket) and not has_cluster(args)))


def run(args: argparse.Namespace) -> int:
    """Print the state of the claim and why it waits. Returns 0 if it has its devices, otherwise 1.

    Raises UsageError for a kind that the agent does not store.
    """
    from dra_agent.cli.claim import key_of
    from dra_agent.cli.connection import connect
    from dra_agent.cli.excluded import KnownExclusions, print_excluded
    from dra_agent.cli.explain import print_allocated, print_details
    from dra_agent.cli.object_names import ObjectName
    from dra_agent.cli.output import emit, prints_names
    from dra_agent.errors import UsageError
    from dra_agent.explain import explain
    from dra_agent.explain.row_budget import shorten
    from dra_agent.explain.search_time import search_s
    from dra_agent.standalone.allocator import GATES
    from dra_agent.standalone.protocol import Get, State

    if args.kind != "claim":
        raise UsageError(
            f"there are no {args.kind}s: this host's agent runs without Kubernetes",
            hint="write explain claim NAME, or name a cluster with --kubeconfig",
        )
    with connect(args) as agent:
        named = ObjectName(args.kind, None, args.name)
        view = agent.call(Get(*key_of(agent, named, args.namespace)))
        state = agent.call(State())
    name = f"{view['namespace']}/{view['name']}"
    summary = _summary(view)
    if view["phase"] != "Pending":
        if prints_names():
            for device in view["devices"]:
                print(device["device"])
        elif args.output == "table":
            print(f"claim {name}: {summary}")
        else:
            emit({"claim": name, "fits": view["phase"] == "Prepared", "summary": summary}, args.output)
        return 0 if view["phase"] == "Prepared" else 1
    own = [view["claim"]]
    explanation = explain(
        node=state["node"],
        classes=state["classes"],
        slices=state["slices"],
        allocated=state["allocated"],
        claims=own,
        gates=GATES,
        deadline=search_s(args.timeout, own),
    )
    explanation["excluded"] = KnownExclusions(args).of(explanation["node"], explanation)
    if prints_names():
        print_allocated(explanation)
    elif args.output == "table":
        print(f"claim {name}: {summary}\n{explanation['summary']}")
        print_details(explanation, everything=args.all_devices)
        print_excluded(explanation["node"], explanation["excluded"])
    else:
        if omitted := shorten([explanation], everything=args.all_devices):
            explanation["omitted"] = omitted
        emit(explanation, args.output)
    return 0 if explanation["fits"] else 1


def _summary(view: dict[str, Any]) -> str:
    devices = ", ".join(device["device"] for device in view["devices"])
    return ": ".join(part for part in (view["phase"].lower(), devices or view["message"]) if part)
