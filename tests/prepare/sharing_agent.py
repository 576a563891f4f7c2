"""An agent that shares its state directory and reads calls from standard input: `python sharing_agent.py ROOT NAME`.

A line is "NUMBER prepare UID GPU", "NUMBER unprepare UID" or "NUMBER compact"; responses are "NUMBER WORD", in any
order.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dra_agent.errors import AgentError
from dra_agent.prepare.ledger import DeviceHeldError, JournalLedger
from dra_agent.prepare.locks import KeyedLocks
from prepare.simulated_node import SimulatedNode, claim


def main() -> None:
    root, name = Path(sys.argv[1]), sys.argv[2]
    node = SimulatedNode(root)
    ledger = JournalLedger(root / "state", "boot-1", shared_as=name)
    node.ledger = ledger
    node.locks = KeyedLocks(root / "state" / "locks", process=name)
    node.start()
    if problems := node.preparer.recovery.recover().problems:
        sys.exit("\n".join(problems))
    output_lock = threading.Lock()

    def respond(line: str) -> None:
        with output_lock:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def work(number: str, operation: str, *args: str) -> None:
        try:
            if operation == "prepare":
                response = node.preparer.prepare(claim(*args))[0].device
            elif operation == "unprepare":
                response = f"released {node.preparer.unprepare(args[0])}"
            else:
                ledger.compact(only_due=False)
                response = "compacted"
        except DeviceHeldError:
            response = "held"
        except AgentError as error:
            response = f"error {error}"
        respond(f"{number} {response}")

    respond("0 ready")
    with ThreadPoolExecutor(4) as pool:
        for line in sys.stdin:
            pool.submit(work, *line.split())


if __name__ == "__main__":
    main()
