"""An agent that shares its state directory, told what to do on standard input: `python sharing_agent.py ROOT NAME`.

A line is "NUMBER prepare UID GPU", "NUMBER unprepare UID" or "NUMBER compact"; answers are "NUMBER WORD", in any order.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dra_agent.errors import AgentError
from dra_agent.prepare.ledger import DeviceHeldError, JournalLedger
from dra_agent.prepare.locks import KeyedLocks
from prepare.simulated_world import World, claim


def main() -> None:
    root, name = Path(sys.argv[1]), sys.argv[2]
    world = World(root)
    ledger = JournalLedger(root / "state", "boot-1", shared_as=name)
    world.ledger = ledger
    world.locks = KeyedLocks(root / "state" / "locks", process=name)
    world.start()
    if problems := world.preparer.recover().problems:
        sys.exit("\n".join(problems))
    out = threading.Lock()

    def say(line: str) -> None:
        with out:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def work(number: str, what: str, *args: str) -> None:
        try:
            if what == "prepare":
                answer = world.preparer.prepare(claim(*args))[0].device
            elif what == "unprepare":
                answer = f"released {world.preparer.unprepare(args[0])}"
            else:
                with ledger.lease():
                    ledger._native.compact()
                answer = "compacted"
        except DeviceHeldError:
            answer = "held"
        except AgentError as error:
            answer = f"error {error}"
        say(f"{number} {answer}")

    say("0 ready")
    with ThreadPoolExecutor(4) as pool:
        for line in sys.stdin:
            pool.submit(work, *line.split())


if __name__ == "__main__":
    main()
