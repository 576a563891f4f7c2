"""The end of a run removes its cluster completely, also after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.kube.cluster_dir import BASE, ClusterDir
from cluster.kube.process import LONG_TIMEOUT_S, owned, until

OTHER_RUN = """
import signal, sys
from cluster.kube.cluster import running
from cluster.kube.workload import Namespace

# The parent process may ignore it, as workers of pytest-xdist do.
signal.signal(signal.SIGINT, signal.default_int_handler)
with running(nodes=("node-a",)) as cluster:
    namespace = Namespace(cluster, "left")
    namespace.pod("left")
    namespace.running("left")
    print(cluster.cluster_dir.number, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_cluster(number: signal.Signals) -> None:
    tests = Path(__file__).resolve().parents[1]
    run = subprocess.Popen(
        [sys.executable, "-c", OTHER_RUN], cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with run:
        assert run.stdout
        number_of_dir = int(run.stdout.readline())
        run.send_signal(number)
        run.wait(LONG_TIMEOUT_S)
    directory = BASE / str(number_of_dir)
    until(lambda: not directory.exists(), f"{directory} is gone")
    assert owned(directory) == []
    assert str(directory) not in Path("/proc/mounts").read_text()
    left = ClusterDir(number_of_dir, -1)
    until(lambda: host_addresses().isdisjoint(left.addresses()), "its addresses are gone")
    until(lambda: left.pod_network(0)[:-4] not in routes(), "the pods' network is gone")


def host_addresses() -> set[str]:
    words = subprocess.run(["ip", "-brief", "address"], check=True, capture_output=True, text=True).stdout.split()
    return {word.partition("/")[0] for word in words}


def routes() -> str:
    return subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
