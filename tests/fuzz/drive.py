"""Drive one Python target with atheris: `python -m fuzz.drive NAME [libFuzzer's options] [corpus]`."""

from __future__ import annotations

import importlib
import logging
import resource
import shlex
import sys
import time
from collections.abc import Callable

CPU_LIMIT_S = 5.0
"""CPU time of one input. Coverage makes Python several times slower."""
MEMORY_LIMIT_KIB = 64 << 10
"""The maximum increase of the peak memory by one input."""


def limited(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a check that fails if an input takes too much time or memory."""

    def run(data: bytes) -> None:
        started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        check(data)
        cpu_time = time.process_time() - started
        increase = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert cpu_time <= CPU_LIMIT_S, f"{cpu_time:.1f} s of CPU time, at most {CPU_LIMIT_S} are allowed"
        assert increase <= MEMORY_LIMIT_KIB, f"{increase} KiB of memory, at most {MEMORY_LIMIT_KIB} are allowed"

    return run


def main(arguments: list[str]) -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    name, *options = arguments
    # Logging would take most of the time.
    logging.disable(logging.CRITICAL)
    # tomllib is included, because the agent's handling of its exceptions is part of the target.
    with atheris.instrument_imports(include=["dra_agent", "tomllib"]):
        target = importlib.import_module(f"fuzz.inputs.{name}")
        # Import modules that are imported on first use.
        target.check(b"")
    # To minimize a corpus, libFuzzer runs its first argument in a shell, once for each part of the corpus.
    command = shlex.join([sys.executable, "-m", "fuzz.drive", name])
    atheris.Setup([command, *options], limited(target.check))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
