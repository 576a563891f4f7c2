"""`dra-agent webhook`: the optional admission webhook, in the foreground."""

from __future__ import annotations

import argparse
from pathlib import Path

EPILOG = """\
The API server asks it about ResourceClaims, ResourceClaimTemplates and DeviceClasses (docs/webhook.md); the Helm chart
installs it with webhook.enabled. The two files are read again whenever they are replaced.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    from dra_agent.agent.config import add_flags

    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--listen", default=":8443", metavar="HOST:PORT", help="where to listen (default: :8443)")
    parser.add_argument("--tls-cert", type=Path, required=True, metavar="FILE", help="the certificate, PEM")
    parser.add_argument("--tls-key", type=Path, required=True, metavar="FILE", help="its key, PEM")
    add_flags(parser, ("driver_name", "metrics_address", "log_level", "log_format"))


def run(args: argparse.Namespace) -> int:
    """Answer until SIGTERM or SIGINT."""
    import asyncio

    from dra_agent.agent import logs, signals
    from dra_agent.agent.config import listen_address, load
    from dra_agent.agent.reload import Reload
    from dra_agent.agent.webhooks import serve

    received = signals.install()
    config = load(args)
    logs.set_up(config.log_level, config.log_format)
    address = listen_address(args.listen, "--listen")
    metrics = listen_address(config.metrics_address) if config.metrics_address else None
    reload = Reload(config, lambda: load(args))
    asyncio.run(serve(address, args.tls_cert, args.tls_key, config.driver_name, metrics, received, reload))
    return 0
