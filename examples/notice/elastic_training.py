"""Elastic training on CPUs with the life cycle of torchrun: workers, a collective operation in each step, a restart with
another number of workers from the last checkpoint.

    python elastic_training.py WORKERS CHECKPOINT STEPS [SECONDS_PER_STEP]

It runs without torch: `all_reduce` goes through pipes to the launcher. In a program with torch, replace it with
`torch.distributed.all_reduce` of a tensor, and the launcher with torchrun.

All ranks have to stop at the same step, or the others wait forever in the next collective operation. Ranks see a change
of the file at different steps. So each rank contributes what it has read to the collective operation of the step, and
every rank acts on the maximum.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

LEVELS = {"none": 0, "cancelled": 0, "hint": 1, "notice": 2}
"""Levels of phases: the maximum of all ranks applies. A phase of a later version counts as none."""
SAVE_STEPS = (100, 10)
"""Steps between two checkpoints, by level."""
AllReduce = Callable[[float, int], tuple[float, int]]
"""The sum of the gradients and the maximum of the levels of all ranks."""


def level() -> int:
    """Return the level of the notice as this rank reads it now."""
    directory = os.environ.get("DRA_AGENT_NOTICE_DIR")
    if directory is None:
        return 0
    try:
        document = (Path(directory) / "notice.json").read_text()
    except OSError:  # Without Kubernetes, the file is removed when the notice ends.
        return 0
    return LEVELS.get(json.loads(document)["phase"], 0)


def train(rank: int, world: int, checkpoint: Path, steps: int, seconds: float, all_reduce: AllReduce) -> None:
    """Train as one rank, until the last step or a notice."""
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "weight": 0.0}
    while state["step"] < steps:
        time.sleep(seconds)  # the work of one step
        gradient, agreed = all_reduce(1.0 / world, level())
        state = {"step": state["step"] + 1, "weight": state["weight"] + gradient}
        last = agreed == 2 or state["step"] == steps
        if rank == 0 and (last or state["step"] % SAVE_STEPS[agreed] == 0):
            new = checkpoint.with_suffix(".new")
            new.write_text(json.dumps(state))
            new.rename(checkpoint)
        if last:
            return


def _worker(
    rank: int, world: int, checkpoint: Path, steps: int, seconds: float, launcher: Connection[object, object]
) -> None:
    def all_reduce(gradient: float, own: int) -> tuple[float, int]:
        launcher.send((gradient, own))
        return launcher.recv()  # type: ignore[return-value]

    train(rank, world, checkpoint, steps, seconds, all_reduce)
    launcher.close()


def launch(world: int, checkpoint: Path, steps: int, seconds: float) -> int:
    """Run the workers, reduce what they send, and return 0 if all of them ended well."""
    print(f"{world} workers", flush=True)
    pipes = [Pipe() for _ in range(world)]
    workers = [
        Process(target=_worker, args=(rank, world, checkpoint, steps, seconds, remote), daemon=True)
        for rank, (_, remote) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    for _, remote in pipes:
        remote.close()
    try:
        while True:
            sent = [own.recv() for own, _ in pipes]
            reduced = sum(gradient for gradient, _ in sent), max(own for _, own in sent)
            for own, _ in pipes:
                own.send(reduced)
    except (EOFError, ConnectionError):
        pass  # a worker has ended: all end at the same step
    for worker in workers:
        worker.join()
    state = json.loads(checkpoint.read_text())
    print("finished" if state["step"] == steps else f"stopped at step {state['step']}: the host is being reclaimed")
    return 0 if all(worker.exitcode == 0 for worker in workers) else 1


if __name__ == "__main__":
    sys.exit(
        launch(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 1.0)
    )
