"""A long run of the life cycle: `make lifecycle MINUTES=60 ARGS='--host two-agents --seed 7'`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from prepare.life_cycle.machine import LifeCycle
from prepare.life_cycle.runs import run
from prepare.life_cycle.test_one_agent import OneAgent
from prepare.life_cycle.test_two_agents import TwoAgents
from prepare.life_cycle.test_two_state_directories import TwoStateDirectories

HOSTS: dict[str, type[LifeCycle]] = {
    "one-agent": OneAgent,
    "two-agents": TwoAgents,
    "two-state-directories": TwoStateDirectories,
}
EXAMPLES, STEPS = 25, 50
"""Per seed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--host", choices=HOSTS, help="one of them; otherwise each in turn")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each further one has the next")
    args = parser.parse_args()
    names = [args.host] if args.host else list(HOSTS)
    start, rounds = time.monotonic(), 0
    while rounds < len(names) or time.monotonic() - start < 60 * args.minutes:
        name, number = names[rounds % len(names)], args.seed + rounds // len(names)
        try:
            with tempfile.TemporaryDirectory(prefix="dra-") as folder:
                run(HOSTS[name], Path(folder), examples=EXAMPLES, steps=STEPS, seed_number=number)
        except BaseException:
            print(f"FAILED: --host {name} --seed {number}", flush=True)
            raise
        rounds += 1
        print(f"--host {name} --seed {number}: passed", flush=True)
    print(f"passed: {rounds} rounds of {', '.join(names)} from seed {args.seed} in {time.monotonic() - start:.0f} s")
    for event, count in sorted(LifeCycle.counters.items()):
        print(f"{count:8} {event}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
