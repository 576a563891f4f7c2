"""An agent that prepares and unprepares claims until it is killed: `python killed_agent.py ROOT`.

After each call it writes "+ uid device" or "- uid" to standard output, as the kubelet would record it.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from dra_agent.prepare.ledger import JournalLedger
from prepare.simulated_node import SimulatedNode, claim


def main() -> None:
    root = Path(sys.argv[1])
    node = SimulatedNode(root)
    node.ledger = JournalLedger(root / "state", "boot-1")
    node.start()
    problems = node.preparer.recovery.recover().problems
    if problems:
        sys.exit("\n".join(problems))
    report("ready")
    rng = random.Random(os.getpid())
    held = {entry.uid: entry.devices[0].device for entry in node.ledger.entries()}
    number = 0
    while True:
        if held and (len(held) == 8 or rng.random() < 0.5):
            uid = rng.choice(sorted(held))
            report(f"? {uid}")
            node.preparer.unprepare(uid)
            del held[uid]
            report(f"- {uid}")
        else:
            free = sorted(set(node.devices) - set(held.values()))
            number += 1
            uid, device = f"{os.getpid()}-{number}", rng.choice(free)
            node.preparer.prepare(claim(uid, device))
            held[uid] = device
            report(f"+ {uid} {device}")


def report(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
