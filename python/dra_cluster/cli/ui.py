"""`dra-agent ui`: a read-only page of this host, and of a cluster, for a browser on this machine."""

from __future__ import annotations

import argparse

from dra_agent.cli.parser import examples

DEFAULT_PORT = 9419
HOST_INTERVAL_S = 2.0
"""Seconds between two readings of the host, while a page is open."""
CLUSTER_INTERVAL_S = 10.0
EPILOG = (
    examples(
        ("ui", "print the address of the page, and serve it until Ctrl-C"),
        ("ui --port 0", "on a free port"),
        ("ui --simulate dgx-h100", "the page of a simulated host"),
        ("ui --kubeconfig admin.conf", "with the nodes and the pending claims of a cluster"),
    )
    + """
The page is served on 127.0.0.1 only, below a path with a secret that changes at each start: anyone who has the address
and an account on this machine can read it. For a browser on another machine: ssh -L 9419:127.0.0.1:9419 HOST
"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the flags."""
    from dra_agent.agent.config import HOST_FLAGS, add_flags

    parser.epilog = EPILOG
    parser.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        metavar="PORT",
        help=f"port on 127.0.0.1; 0 is a free one (default {DEFAULT_PORT})",
    )
    add_flags(parser, (*HOST_FLAGS, "kubeconfig"))
    parser.add_argument("--context", metavar="CONTEXT", help="context of the kubeconfig (default: its current one)")


def run(args: argparse.Namespace) -> int:
    """Serve the page until the command is interrupted or terminated."""
    import os
    import signal
    from contextlib import closing, suppress

    from dra_agent.cli.connection import has_cluster
    from dra_cluster.cli.ui_cluster import read_cluster_view
    from dra_cluster.cli.ui_host import HostReader
    from dra_cluster.page.last_known import LastKnown
    from dra_cluster.page.server import PageServer
    from dra_cluster.page.site import Site

    # A pipe, because a handler runs on the thread that waits: the lock of an Event would wait for itself.
    terminated, terminate = os.pipe()
    os.set_blocking(terminate, False)

    def on_signal(number: int, frame: object) -> None:
        with suppress(BlockingIOError):
            os.write(terminate, b"\0")

    signal.signal(signal.SIGTERM, on_signal)
    cluster = LastKnown(lambda: read_cluster_view(args), interval_s=CLUSTER_INTERVAL_S) if has_cluster(args) else None
    with closing(HostReader(args)) as reader:
        host = LastKnown(reader.read, interval_s=HOST_INTERVAL_S)
        with closing(PageServer(Site(host, cluster), args.port)) as server:
            server.start()
            print(server.url, flush=True)
            os.read(terminated, 1)
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text} is not a port between 0 and 65535")
    return int(text)
