"""The part of gRPC that the agent turns off by a name that is internal to gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import DEADLINE_S

SERVER = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import dra_agent.kubelet_plugin
import grpc
server = grpc.server(ThreadPoolExecutor(1))
assert server.add_insecure_port(f"unix:{sys.argv[1]}")
server.start()
server.stop(0).wait()
print(os.environ["GRPC_EXPERIMENTS"])
"""
UNKNOWN = "Unknown experiment"


def serve(path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"} | variables
    command = [sys.executable, "-c", SERVER, str(path / "socket")]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=DEADLINE_S)


def test_this_version_of_grpc_knows_the_name(short_path: Path) -> None:
    done = serve(short_path)
    assert done.stdout.strip() == "-event_engine_listener"
    assert UNKNOWN not in done.stderr, "measure again: docs/adr/0064-grpc-without-the-listener-of-its-event-engine.md"
    assert UNKNOWN in serve(short_path, GRPC_EXPERIMENTS="-no_such_part").stderr, "gRPC reports unknown names"


@pytest.mark.parametrize("value", ["", "event_engine_fork"])
def test_a_value_of_the_operator_is_kept(short_path: Path, value: str) -> None:
    assert serve(short_path, GRPC_EXPERIMENTS=value).stdout.strip() == value
