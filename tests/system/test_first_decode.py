"""Threads decode a Struct for the first time at once, which ended the process with msgspec before 0.23."""

from __future__ import annotations

import subprocess
import sys

RACE = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
import dra_agent.agent.agent, dra_agent.agent.kubernetes_mode, dra_agent.agent.standalone_mode
THREADS = 6
def structs_of(struct):
    for sub in struct.__subclasses__():
        yield sub
        yield from structs_of(sub)
structs = list(structs_of(msgspec.Struct))
assert len(structs) > 80, structs
for struct in structs:
    barrier = threading.Barrier(THREADS)
    def decode():
        barrier.wait()
        try:
            msgspec.convert(dict.fromkeys(struct.__struct_encode_fields__, 0), struct)
        except (msgspec.ValidationError, TypeError, NotImplementedError):
            pass
    threads = [threading.Thread(target=decode) for _ in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""
"""Ended that way in a third of its runs."""
RUNS = 6
TIMEOUT_S = 120


def test_threads_may_decode_the_same_type_first() -> None:
    command = [sys.executable, "-c", RACE]
    ended = [subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_S) for _ in range(RUNS)]
    assert [(run.returncode, run.stderr) for run in ended] == [(0, b"")] * RUNS
