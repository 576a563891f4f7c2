"""`dra-agent claims`: who holds which device of this host."""

from __future__ import annotations

import argparse

from dra_agent.cli.output import add_output_flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the flags."""
    from dra_agent.cli.connection import add_connection_flags

    add_connection_flags(parser)
    add_output_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print one row for each device that a claim holds."""
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import emit, table
    from dra_agent.standalone.wire import ListClaims

    with connect(args) as agent:
        claims = agent.ask(ListClaims())
    held = [
        {
            "device": device["device"],
            "pool": device["pool"],
            "namespace": claim["namespace"],
            "claim": claim["name"],
            "uid": claim["uid"],
            "requests": device["requests"],
            "cdi_device_ids": device["cdi_device_ids"],
            "since": claim["created"],
        }
        for claim in claims
        for device in claim["devices"]
    ]
    if args.output != "table":
        emit(held, args.output)
        return 0
    table(
        ["device", "claim", "request", "since", "cdi id"],
        (
            [
                row["device"],
                f"{row['namespace']}/{row['claim']}",
                ", ".join(row["requests"]),
                row["since"],
                "\n".join(row["cdi_device_ids"]),
            ]
            for row in held
        ),
    )
    return 0
