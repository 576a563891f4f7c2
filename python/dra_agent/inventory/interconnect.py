"""Groups the GPUs of a host by the links between them, NVLink or XGMI, for constraints of claims.

A constraint compares one value, so groups cannot overlap, although links can: GPU 1 can be linked to GPUs 0 and 2 that
are not linked with each other. Every two GPUs of a group are linked. Those of two groups may be linked too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_agent.topology.model import address_order

Links = Mapping[tuple[str, str], int | None]
"""The linked pairs of GPUs, by their addresses in the order of `address_order`: how many links connect them; None if
that is unknown. A pair that is not linked, or of which nothing is known, is left out."""


@dataclass(frozen=True, slots=True)
class Interconnect:
    """The group of a GPU."""

    group: str
    """PCI address of its first GPU."""
    width: int | None
    """The links that connect each two of its GPUs at least; None if unknown."""


def pair(one: str, other: str) -> tuple[str, str]:
    """Return the key of two GPUs."""
    return (one, other) if address_order(one) <= address_order(other) else (other, one)


def group_gpus(links: Links) -> dict[str, Interconnect]:
    """Return the groups by address; a GPU without a linked one is in none.

    In the order of addresses, each GPU joins the first group to whose GPUs it is linked without exception. So groups
    depend on nothing but the links, and are the same after a restart.
    """
    groups: list[list[str]] = []
    for address in sorted({address for both in links for address in both}, key=address_order):
        joined = next((group for group in groups if all(pair(address, one) in links for one in group)), None)
        if joined is None:
            groups.append([address])
        else:
            joined.append(address)
    found = {}
    for group in groups:
        if len(group) > 1:
            widths = [links[pair(one, other)] for n, one in enumerate(group) for other in group[n + 1 :]]
            known = [width for width in widths if width is not None]
            described = Interconnect(group[0], min(known) if len(known) == len(widths) else None)
            found.update(dict.fromkeys(group, described))
    return found
