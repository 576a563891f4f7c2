"""Checks how the agent's kubeconfig protects the connection to the API server."""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.errors import UsageError
from dra_agent.kube_client.config import read_kubeconfig


def check_kubeconfig(context: CheckContext) -> Iterator[Finding]:
    """Read the kubeconfig as the agent does, without a connection; nothing if the agent has none."""
    path = context.kubeconfig
    if path is None:
        return
    try:
        config = read_kubeconfig(path)
    except UsageError as error:
        hint = error.hint or (
            "replace the file" if context.user == 0 else "run the doctor as root, or replace the file"
        )
        yield problem(f"the agent cannot use it: {error.message}", error.where or str(path), hint)
        return
    server, where = config.server, str(path)
    if server.startswith("http://"):
        if config.is_local:
            yield ok(f"requests to {server} stay on this host", where)
        else:
            yield warning(f"requests to {server} are neither encrypted nor authenticated", where, "use https://")
    elif config.insecure:
        yield warning(
            f"the certificate of {server} is not verified (insecure-skip-tls-verify): a host on the network path can "
            "read the agent's credentials, and act as the API server",
            where,
            "remove that line, and set certificate-authority-data to the CA of the cluster",
        )
    else:
        yield ok(f"the certificate of {server} is verified", where)
