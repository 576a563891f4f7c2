"""`dra-agent webhook`: the optional admission webhook, in the foreground."""

from __future__ import annotations

import argparse
from pathlib import Path

from dra_agent.cli.parser import examples

EPILOG = """
The API server calls it for ResourceClaims, ResourceClaimTemplates and DeviceClasses; the Helm chart installs it
with webhook.enabled (docs/how-to/install/webhook.md). The files of certificates and keys are read
again whenever they are replaced.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    from dra_agent.agent.config import add_flags

    parser.epilog = examples(("webhook --tls-cert tls.crt --tls-key tls.key", "serve on port 8443")) + EPILOG
    parser.add_argument("--listen", default=":8443", metavar="HOST:PORT", help="where to listen (default: :8443)")
    parser.add_argument("--tls-cert", type=Path, required=True, metavar="FILE", help="the certificate, PEM")
    parser.add_argument("--tls-key", type=Path, required=True, metavar="FILE", help="its key, PEM")
    parser.add_argument(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="refuse reviews to clients without a certificate of these authorities, PEM (default: accept every client)",
    )
    parser.add_argument(
        "--client-name",
        action="append",
        default=[],
        metavar="NAME",
        help="with --client-ca: the common name or DNS name that a client's certificate must have; may be repeated",
    )
    endpoint = ("metrics_address", "metrics_tls_cert", "metrics_tls_key", "metrics_token_file")
    add_flags(parser, ("driver_name", *endpoint, "log_level", "log_format"))


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; raises UsageError for names of clients without a CA."""
    import asyncio

    from dra_agent.agent import logs, signals
    from dra_agent.agent.config import listen_address, load_config
    from dra_agent.agent.reload import Reload
    from dra_agent.agent.webhook_runner import Tls, serve
    from dra_agent.errors import UsageError

    received = signals.install()
    config = load_config(args)
    logs.set_up(config.log_level, config.log_format)
    if args.client_name and args.client_ca is None:
        raise UsageError(
            "names of clients are compared with their certificates, and no certificate is requested",
            where="--client-name",
            hint="set the CA of the client certificates with --client-ca",
        )
    address = listen_address(args.listen, "--listen")
    reload = Reload(config, lambda: load_config(args))
    tls = Tls(args.tls_cert, args.tls_key, args.client_ca, tuple(args.client_name))
    asyncio.run(serve(address, tls, config, received, reload))
    return 0
