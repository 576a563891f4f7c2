"""An agent that prepares and unprepares for ever, to be killed: `python killed_agent.py ROOT`.

After each answer it writes "+uid device" or "-uid" to standard output, as a kubelet would remember it.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from dra_agent.prepare.ledger import JournalLedger
from prepare.simulated_world import World, claim


def main() -> None:
    root = Path(sys.argv[1])
    world = World(root)
    world.ledger = JournalLedger(root / "state", "boot-1")
    world.start()
    problems = world.preparer.recover().problems
    if problems:
        sys.exit("\n".join(problems))
    say("ready")
    chance = random.Random(os.getpid())
    held = {entry.uid: entry.devices[0].device for entry in world.ledger.entries()}
    number = 0
    while True:
        if held and (len(held) == 8 or chance.random() < 0.5):
            uid = chance.choice(sorted(held))
            say(f"? {uid}")
            world.preparer.unprepare(uid)
            del held[uid]
            say(f"- {uid}")
        else:
            free = sorted(set(world.devices) - set(held.values()))
            number += 1
            uid, gpu = f"{os.getpid()}-{number}", chance.choice(free)
            world.preparer.prepare(claim(uid, gpu))
            held[uid] = gpu
            say(f"+ {uid} {gpu}")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
