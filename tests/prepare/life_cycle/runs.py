"""How many lives a run tries."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from prepare.life_cycle.agents import nursery
from prepare.life_cycle.machine import LifeCycle

EXAMPLES, STEPS = 20, 30
"""Of each test in `make test`: seconds. `prepare.life_cycle.campaign` makes long runs."""


def run(
    machine: type[LifeCycle],
    folder: Path,
    *,
    examples: int = EXAMPLES,
    steps: int = STEPS,
    begin_with: int | None = None,
) -> None:
    """Try so many lives of so many steps at most; of those that go wrong a short one is shown.

    With a seed, the same lives each time, and nothing of earlier runs.
    """
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    if begin_with is not None:
        chosen = settings(chosen, database=None)
    with nursery(folder) as started:
        machine.nursery = started
        if begin_with is not None:
            seed(begin_with)(machine)
        run_state_machine_as_test(machine, settings=chosen)
