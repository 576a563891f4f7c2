"""Devices of a node that its agent does not publish, as a part of an explanation.

ResourceSlices have published devices only. Why another device is not among them is known on its node, to the agent
there and to commands that ask it; about other nodes an explanation says where the answer is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dra_agent.printable import printable

if TYPE_CHECKING:
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.inventory.model import Exclusion


class KnownExclusions:
    """The exclusions of the node that this host is, if an agent runs here. The host is read when they are needed."""

    def __init__(self, args: argparse.Namespace) -> None:
        """`args` select the agent."""
        self._args = args

    def of(self, node: str, explanation: dict[str, Any] | None) -> Sequence[Exclusion] | None:
        """Return the devices that a node does not publish; None if they are not known here.

        Empty where each request has enough devices: then the reason is another one.
        """
        if explanation is not None and not _lacks_devices(explanation):
            return ()
        if self._host is None or self._host.config.node != node:
            return None
        return self._read

    @cached_property
    def _host(self) -> ShownHost | None:
        from dra_agent.cli.shown_host import shown_host

        # The plugin and files are about a cluster, which this host is not known to be a node of.
        if getattr(self._args, "is_plugin", False) or getattr(self._args, "dump", ()):
            return None
        shown = shown_host(self._args)
        return shown if shown.is_agents and shown.config.node_problem is None else None

    @cached_property
    def _read(self) -> Sequence[Exclusion] | None:
        from dra_agent.agent.setup_registry import command_host
        from dra_agent.cli.agent_view import published
        from dra_agent.errors import AgentError
        from dra_agent.topology import scan

        assert self._host is not None
        try:
            with command_host(self._host.config) as host:
                return published(self._host, host, scan(host)).excluded
        except AgentError:
            return None


def _lacks_devices(explanation: dict[str, Any]) -> bool:
    """Return whether a request needs more devices than the node has for it."""
    requests = (request for claim in explanation["claims"] for request in claim["requests"])
    return any(request["available"] < max(request["needed"], 1) for request in requests)


def print_excluded(node: str, excluded: Sequence[Exclusion] | None) -> None:
    """Print the devices that a node does not publish, by reason; None: where to see them."""
    from dra_agent.cli.table import table
    from dra_agent.inventory.model import Inventory

    if excluded is None:
        where = f"not in its ResourceSlices: `dra-agent devices` on node {node} lists them with the reasons"
        print("\n" + printable(f"devices that it does not publish are {where}", line=True))
    elif excluded:
        print("\n" + printable(f"node {node} does not publish:", line=True))
        by_reason = Inventory(excluded=tuple(excluded)).excluded_by_reason()
        rows = [(printable(one.name, line=True), one.code, printable(one.reason, line=True)) for one in by_reason]
        table(("devices", "code", "why"), rows, prose=("devices", "why"))
