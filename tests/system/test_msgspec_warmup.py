"""Two threads must not decode a Struct for the first time at once: msgspec crashes the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

RACE = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
import {module}
from dra_agent import msgspec_warmup
{warmup}
structs = msgspec_warmup._subclasses(msgspec.Struct)
assert len(structs) > {at_least}, structs
THREADS = 6
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


def race(module: str, warmup: str, at_least: int) -> int:
    code = RACE.format(module=module, warmup=warmup, at_least=at_least)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120).returncode


@pytest.mark.parametrize(
    ("module", "warmup", "at_least"),
    [
        ("dra_agent.agent.kubernetes_mode, dra_agent.agent.agent", "msgspec_warmup.build_decoders()", 40),
        ("dra_agent.agent.standalone_mode, dra_agent.agent.agent", "msgspec_warmup.build_decoders()", 40),
        ("dra_agent.prepare", "", 15),  # used by threads outside the agent, too
    ],
)
def test_decoders_are_built_before_threads_use_them(module: str, warmup: str, at_least: int) -> None:
    assert [race(module, warmup, at_least) for _ in range(2)] == [0, 0]
