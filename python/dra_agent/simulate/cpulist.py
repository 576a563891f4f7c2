"""Sets of processors in the ways that the kernel prints them: ranges ("0-3,8"), 32-bit words ("00000000,0000010f")."""

from __future__ import annotations

from dra_agent.simulate.machine import Machine


def parse(text: str) -> frozenset[int]:
    """`0-3,8` as a set."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def text(cpus: frozenset[int]) -> str:
    """A set as ranges."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def mask(cpus: frozenset[int]) -> str:
    """A set as comma-separated 32-bit words, highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    words = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def every(machine: Machine) -> frozenset[int]:
    """All processors of a machine."""
    return frozenset().union(*(parse(node.cpus) for node in machine.nodes))


def local(machine: Machine, numa_node: int) -> frozenset[int]:
    """Processors near a device on that node: all of them where the node is -1."""
    return parse(machine.nodes[numa_node].cpus) if numa_node >= 0 else every(machine)


def words(cpus: frozenset[int]) -> tuple[int, ...]:
    """A set as 64-bit words, lowest first, as NVML gives affinities."""
    bits = sum(1 << cpu for cpu in cpus)
    return tuple(bits >> 64 * word & 0xFFFF_FFFF_FFFF_FFFF for word in range(-(-bits.bit_length() // 64)))
