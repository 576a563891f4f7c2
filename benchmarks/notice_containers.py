"""Measures how soon a container on a real kubelet and containerd reads a hint and a notice of AWS.

A round starts when the metadata service of the node announces a rebalance recommendation (hint) or a spot interruption
(notice), and ends when the file in the container has the phase. The file is read through the root directory of the
container's process, which is its own mount. The pod tolerates the taint of a reclaim, so that it runs in all rounds.

It needs the test cluster (docs/tutorials/test-cluster.md), and tests/ in PYTHONPATH: `make bench-reclaim`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from notice_file import announcement, wait
from reclaim_hosts import Host, prepare
from results import Measure, Target, measure, this_machine
from results_table import publish

from cluster.kube.agent import DRIVER
from cluster.kube.cluster import running
from cluster.kube.workload import Namespace, opaque, request
from dra_agent.reclaim.control import Cancel, send_request

NODE = "node-a"
NOTICE = {"apiVersion": f"{DRIVER}/v1", "kind": "ReclaimNoticeConfig"}
HINTS = '[reclaim.aws]\nrebalance = "hint"\n'
"""By default the agent ignores recommendations."""


class Phase(NamedTuple):
    """What the metadata service announces, and the polls of the agent."""

    name: str
    announcement: Callable[[], dict[str, Any]]
    withdrawal: dict[str, Any]
    poll_interval_s: float
    """Of the path that announces it: a round that begins at a random time waits half of it."""


def recommendation() -> dict[str, Any]:
    return {"rebalance": {"noticeTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}}


PHASES = (
    Phase("hint", recommendation, {"rebalance": None}, 5.0),
    Phase("notice", partial(announcement, "aws", True), announcement("aws", False), 1.0),
)


def file_in_container(claim_uid: str) -> Path:
    """Return the notice file of a claim below the root directory of a container's first process."""
    for process in Path("/proc").glob("[0-9]*"):
        file = process / "root/run/dra-agent/notice" / claim_uid / "notice.json"
        try:
            if file.is_file() and _is_first(process):
                return file
        except OSError:
            continue  # the process has ended
    raise RuntimeError(f"no container has the notice file of claim {claim_uid}")


def _is_first(process: Path) -> bool:
    """Return whether the process has number 1 in its own namespace; see proc_pid_status(5)."""
    lines = (process / "status").read_text().splitlines()
    return next(line for line in lines if line.startswith("NSpid:")).split()[-1] == "1"


def phase_of(file: Path) -> str:
    return str(json.loads(file.read_text())["phase"])


def delays_ms(host: Host, file: Path, phase: Phase, rounds: int) -> list[float]:
    """Announce and withdraw a phase; return the time of each round."""
    delays = []
    for _ in range(rounds):
        # The agent has read that nothing is announced, and the round begins between two of its polls.
        time.sleep(phase.poll_interval_s * (1 + random.random()))
        began = float(host.metadata.control(**phase.announcement())["t0"])
        wait(lambda: phase_of(file) == phase.name)
        delays.append((time.time() - began) * 1000)
        # By the operator, because AWS cannot withdraw an interruption; then at the service.
        send_request(host.agent.state_dir, Cancel(everything=True))
        wait(lambda: phase_of(file) == "cancelled")
        host.metadata.control(**phase.withdrawal)
    return delays


def measured(phase: Phase, delays: list[float]) -> list[Measure]:
    limit = Target("value", "at most", phase.poll_interval_s * 1000 + 500)
    name = f"AWS, {phase.name}: announced to visible in the container"
    return [measure(f"{name}, p50", "ms", delays), measure(f"{name}, p99", "ms", delays, at=0.99, target=limit)]


def main() -> int:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="of each phase")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine, measures = this_machine(), list[Measure]()
    with running(nodes=(NODE,)) as cluster:
        prepare(cluster)
        with closing(Host(cluster, NODE, more=HINTS)) as host:
            host.agent.start().ready()
            namespace = Namespace(cluster, "notice")
            tolerated = {"key": f"{DRIVER}/reclaim", "operator": "Exists", "effect": "NoExecute"}
            config = [opaque(DRIVER, NOTICE)]
            claim = namespace.claim("gpu", request("gpu", "gpu", tolerations=[tolerated]), config=config)
            namespace.pod("job", claim="gpu", tolerations=[{"operator": "Exists"}])
            namespace.running("job")
            file = file_in_container(claim["metadata"]["uid"])
            for phase in PHASES:
                measures += measured(phase, delays_ms(host, file, phase, args.rounds))
            namespace.running("job")
    publish("notice_containers", measures, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
