"""`dra-agent run`: the agent itself, in the foreground."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dra_agent import garbage_collection
from dra_agent.cli.parser import examples

if TYPE_CHECKING:
    from dra_agent.agent.config import Config, LoadedConfig

EPILOG = examples(
    ("run --standalone", "store and allocate claims without Kubernetes"),
    ("run --standalone --simulate dgx-h100 --state-dir ./state", "on a simulated DGX H100, without root"),
    ("run --kubeconfig /etc/kubernetes/kubelet.conf", "serve the kubelet of this node"),
    ("run --config ./config.toml", "with another file than /etc/dra-agent/config.toml"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    from dra_agent.agent.config import add_flags

    parser.epilog = EPILOG
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; raises NoClusterError in Kubernetes mode without access to an API server."""
    import logging
    import os

    from dra_agent.agent import logs, signals
    from dra_agent.agent.config import load, watched_file
    from dra_agent.agent.rolling_update import check_uid
    from dra_agent.kube_client.config import NoClusterError, load_client_config

    received = signals.install()
    loaded = load(args, needs_node=True)
    config = loaded.config
    access = None
    if not config.standalone:
        # Checked before anything is changed on the host: Kubernetes mode needs an API server.
        if config.pod_uid:
            check_uid(config.pod_uid)
        try:
            access = load_client_config(config.kubeconfig)
        except NoClusterError as error:
            raise NoClusterError(error.message, hint=f"{error.hint}, or run without Kubernetes: --standalone") from None
    logs.set_up(config.log_level, config.log_format)
    _log_ignored(loaded)
    if access is not None and access.insecure and access.server.startswith("https://"):
        logging.getLogger(__name__).warning(
            "the certificate of the API server is not verified",
            extra={"server": access.server, "reason": f"insecure-skip-tls-verify in {access.source}"},
        )
    with garbage_collection.paused():
        from dra_agent.agent import event_loop
        from dra_agent.agent.agent import Agent
        from dra_agent.agent.reload import Reload

    def read_again() -> Config:
        loaded = load(args, needs_node=True)
        _log_ignored(loaded)
        return loaded.config

    async def live() -> list[str]:
        agent = Agent(config, received, Reload(config, read_again), watched_file(args))
        await agent.run()
        return agent.hung_calls

    try:
        hung_calls = event_loop.run(live())
    finally:
        logs.flush()  # before the command itself writes why it ends
    if hung_calls:
        # The interpreter would wait for the thread indefinitely. All files are closed and synced.
        logging.getLogger(__name__).warning("stopped while calls are pending", extra={"work": hung_calls})
        logging.shutdown()
        os._exit(0)
    return 0


def _log_ignored(loaded: LoadedConfig) -> None:
    import logging

    for ignored in loaded.ignored:
        logging.getLogger(__name__).warning("setting of an earlier version ignored", extra={"reason": str(ignored)})
