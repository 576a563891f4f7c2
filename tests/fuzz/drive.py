"""Drive one Python target with atheris: `python -m fuzz.drive NAME [libFuzzer's options] [corpus]`."""

from __future__ import annotations

import importlib
import logging
import resource
import sys
import time
from collections.abc import Callable

CPU_LIMIT_S = 5.0
"""CPU time of one input. Coverage makes Python several times slower."""
MEMORY_LIMIT_KIB = 64 << 10
"""By which one input may raise the peak of the process."""


def limited(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a check that fails where an input takes too much time or memory."""

    def run(data: bytes) -> None:
        began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        check(data)
        taken = time.process_time() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert taken <= CPU_LIMIT_S, f"{taken:.1f} s of CPU time, at most {CPU_LIMIT_S} are allowed"
        assert grown <= MEMORY_LIMIT_KIB, f"{grown} KiB of memory, at most {MEMORY_LIMIT_KIB} are allowed"

    return run


def main(arguments: list[str]) -> None:
    """Fuzz until libFuzzer ends the process."""
    import atheris

    name, *options = arguments
    # What the agent logs of each input would be most of the work.
    logging.disable(logging.CRITICAL)
    # tomllib is Python's own, and what the agent does with what it raises is part of the target.
    with atheris.instrument_imports(include=["dra_agent", "tomllib"]):
        target = importlib.import_module(f"fuzz.inputs.{name}")
        # Modules that are imported when they are needed.
        target.check(b"")
    atheris.Setup([sys.argv[0], *options], limited(target.check))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
