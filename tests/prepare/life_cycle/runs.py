"""The size of a test run."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from prepare.life_cycle.agents import agent_factory
from prepare.life_cycle.machine import LifeCycle

EXAMPLES, STEPS = 20, 30
"""Per test in `make test`: seconds. `prepare.life_cycle.campaign` makes long runs."""


def run(
    machine: type[LifeCycle],
    folder: Path,
    *,
    examples: int = EXAMPLES,
    steps: int = STEPS,
    seed_number: int | None = None,
) -> None:
    """Run up to this many examples with up to this many steps each; a failure is reported as a short example.

    With a seed the examples are reproducible, and no earlier examples are used.
    """
    selected = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    if seed_number is not None:
        selected = settings(selected, database=None)
    with agent_factory(folder) as factory:
        machine.agent_factory = factory
        if seed_number is not None:
            seed(seed_number)(machine)
        run_state_machine_as_test(machine, settings=selected)
