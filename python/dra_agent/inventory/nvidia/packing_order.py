"""The order in which the partitions of one GPU are offered, which is how claims fill it.

The scheduler takes the first partition that fits, in published order. So, of one profile, the place comes first that
spoils least for the others; whoever names no profile gets the smallest that will do. See docs/adr/0040.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_agent.inventory.nvidia.profiles import MigProfile, Placement


def packing_order(profiles: Sequence[MigProfile]) -> list[tuple[MigProfile, Placement]]:
    """Give every profile at every place, in the order in which they are to be taken."""
    everything = [(profile, placement) for profile in profiles for placement in profile.placements]

    def order(one: tuple[MigProfile, Placement]) -> tuple[int, int, int, int, int, int]:
        profile, placement = one
        return (
            placement.size,
            profile.slices,
            sum(profile.engines.values()),
            profile.id,
            _spoils(one, everything),
            -placement.start,
        )

    return sorted(everything, key=order)


def _spoils(one: tuple[MigProfile, Placement], everything: Sequence[tuple[MigProfile, Placement]]) -> int:
    """Add up the memory slices of all places of other profiles that an instance there would take away."""
    profile, placement = one
    return sum(other.size for kind, other in everything if kind.id != profile.id and placement.overlaps(other))
