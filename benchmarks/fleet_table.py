"""The counts of the phases of `fleet.py`, as text and as JSON, and the extrapolation to a larger fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LARGE_FLEET = 5000
LIST_JITTER_S = 5.0
"""Seconds over which lists after a lost watch are spread (publish.md, "Many agents and one API server")."""


@dataclass
class Phase:
    """The measurements of one phase."""

    name: str
    agents: int
    """Agents that take part."""
    seconds: float
    requests: dict[str, int]
    """By verb and resource."""
    sent: int
    """Bytes from the API server: reads and watch events."""
    received: int
    """Bytes to the API server: bodies."""
    watches: int
    connections: int
    cpu_s: dict[str, float]
    """CPU seconds by process."""
    resident: dict[str, int]
    """Bytes by process at the end."""
    p50_ms: float
    p99_ms: float
    """Of requests, in the API server."""
    right_s: dict[str, float | None] = field(default_factory=dict)
    """Seconds from an event until every slice is right; None: not within the limit."""
    values: dict[str, float] = field(default_factory=dict)
    """Further measurements."""

    @property
    def per_agent(self) -> float:
        """Requests per agent."""
        return sum(self.requests.values()) / self.agents


def show_phase(phase: Phase) -> None:
    """Print the counts of a phase."""
    print(f"\n{phase.name}: {phase.agents} agents, {phase.seconds:.1f} s, {phase.per_agent:.2f} requests per agent")
    for name, count in phase.requests.items():
        print(f"  {name:48}{count:>9}{count / phase.agents:>9.2f} per agent")
    print(
        f"  {phase.sent / 1e6:.2f} MB from and {phase.received / 1e6:.2f} MB to the API server; "
        f"{phase.watches} watches, {phase.connections} connections; "
        f"p50 {phase.p50_ms:.1f} ms, p99 {phase.p99_ms:.1f} ms"
    )
    cpu = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phase.cpu_s.items())
    memory = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in phase.resident.items())
    print(f"  CPU: {cpu}; resident: {memory}")
    for name, value in phase.values.items():
        print(f"  {name}: {value:.2f}")
    for name, seconds in phase.right_s.items():
        print(f"  every slice is right, {name}: {'never' if seconds is None else f'{seconds:.2f} s'}", flush=True)


def extrapolate(phases: Mapping[str, Phase], size: int = LARGE_FLEET) -> list[str]:
    """Return the reasoning for a larger fleet, one step per line, from the phases that were measured."""
    steps = []
    if (start := phases.get("start storm")) is not None:
        total = start.per_agent * size
        cpu = start.cpu_s["kube-apiserver"] / sum(start.requests.values()) * 1000
        steps.append(
            f"start: {start.per_agent:.2f} requests x {size} agents = {total:.0f} requests; at {cpu:.2f} ms of CPU of "
            f"the API server for each, {total * cpu / 1000:.0f} CPU seconds"
        )
    if (idle := phases.get("idle")) is not None:
        watches = idle.watches / idle.agents * size
        live, resident = (idle.values[f"{name} bytes per watch"] for name in ("live", "resident"))
        steps.append(
            f"watches: {idle.watches / idle.agents:.1f} per agent x {size} = {watches:.0f}; the live heap and stacks "
            f"of the API server grow by {live / 1024:.0f} KiB for each, with connections and cached slices: "
            f"{watches * live / 2**20:.0f} MiB; its resident memory grows by {resident / 1024:.0f} KiB for each, with "
            f"garbage: {watches * resident / 2**20:.0f} MiB"
        )
    if (restart := phases.get("API server restart")) is not None:
        lists = restart.values["lists"] / restart.agents
        rate = lists * size / LIST_JITTER_S
        steps.append(
            f"API server restart: {lists:.2f} lists per agent, spread evenly over {LIST_JITTER_S:g} s by full jitter: "
            f"{lists:.2f} x {size} / {LIST_JITTER_S:g} s = {rate:.0f} lists a second, {rate / 10:.0f} in 100 ms "
            f"({rate / 10 / size:.1%} of the fleet)"
        )
    return steps


def save_phases(path: Path, settings: Mapping[str, Any], phases: Sequence[Phase], steps: Sequence[str]) -> None:
    """Write the counts of all phases, and the extrapolation, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"settings": dict(settings), "phases": [asdict(phase) for phase in phases], "extrapolation": list(steps)}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(body, indent=1) + "\n")
    temporary.rename(path)
