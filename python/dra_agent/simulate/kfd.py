"""AMD's compute topology: /sys/class/kfd. Filled where the machine has GPUs under amdgpu."""

from __future__ import annotations

from dra_agent.simulate.machine import Machine
from dra_agent.simulate.tree import Tree


def plan(machine: Machine, tree: Tree) -> None:
    """Add the topology's nodes."""
    del machine, tree
