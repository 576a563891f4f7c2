"""Who holds what on this host, as the running agent knows it: commands show it beside what they find themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_agent.agent.config import Config

_NAME = re.compile(r"[a-z]+-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-|$)")
"""Device names come from the PCI address: gpu-0000-3b-00-0, gpu-0000-3b-00-0-mig-1g-10gb-4."""


def by_device(config: Config) -> dict[str, list[str]]:
    """Give the claims that hold each device, by its name; nothing where no agent runs."""
    from dra_agent.errors import AgentError
    from dra_agent.standalone.client import Client
    from dra_agent.standalone.wire import SOCKET, ListClaims

    path = config.state_dir / SOCKET
    holders: dict[str, list[str]] = {}
    if not path.exists():
        return holders
    try:
        with Client(path) as agent:
            for claim in agent.ask(ListClaims()):
                for device in claim["devices"]:
                    holders.setdefault(device["device"], []).append(f"{claim['namespace']}/{claim['name']}")
    except AgentError:
        # An agent that stopped leaves its socket behind; the devices can be shown without it.
        return {}
    return holders


def by_address(config: Config) -> dict[str, list[str]] | None:
    """Give the claims that hold a PCI function or a partition of it; None where no agent runs that would know."""
    from dra_agent.standalone.wire import SOCKET

    if not (config.state_dir / SOCKET).exists():
        return None
    holders: dict[str, list[str]] = {}
    for name, claims in by_device(config).items():
        if match := _NAME.match(name):
            domain, bus, device, function = match.groups()
            known = holders.setdefault(f"{domain}:{bus}:{device}.{function}", [])
            known.extend(claim for claim in claims if claim not in known)
    return holders
