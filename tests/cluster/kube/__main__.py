"""`make cluster` and `make cluster-down`: a cluster for manual use, with the agent on both nodes."""

from __future__ import annotations

import argparse
import sys

from cluster.kube.cluster_dir import BASE, ClusterDir

from . import build
from .agent import Agent
from .cluster import Cluster
from .prerequisites import MissingError


def up(profiles: list[str]) -> None:
    """Start a cluster with an agent on each node, and leave it running."""
    programs = build.programs()
    cluster_dir = ClusterDir.acquire()
    try:
        cluster = Cluster(cluster_dir, programs)
        cluster.start()
        agents = [
            Agent(node, profile, cluster.identity().kubeconfig(node.name)).start()
            for node, profile in zip(cluster.nodes, profiles, strict=True)
        ]
        for agent in agents:
            agent.ready()
        cluster_dir.left_running.touch()
    except BaseException:
        cluster_dir.clear()
        raise
    finally:
        cluster_dir.release()
    print("The cluster runs:")
    for agent in agents:
        print(f"  {agent.node.name}  {agent.profile}, {len(agent.devices())} devices; log: {agent.process.log}")
    print(f"  export KUBECONFIG={cluster.kubeconfig} PATH={programs}:$PATH")
    print("  kubectl apply -f examples/classes && kubectl get resourceslices")
    print("`make cluster-down` ends it.")


def down() -> None:
    """Stop every cluster that was left running, and remove the remains of killed ones."""
    for directory in sorted(BASE.glob("*/")):
        cluster_dir = ClusterDir.lock(int(directory.name))
        if cluster_dir is None:
            print(f"{directory} belongs to a process that runs: left alone")
            continue
        cluster_dir.clear()
        cluster_dir.release()
        print(f"{directory} is gone")


def main() -> int:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(prog="python -m cluster.kube")
    actions = parser.add_subparsers(dest="action", required=True)
    start = actions.add_parser("up", help="bring a cluster up and leave it running")
    start.add_argument("profiles", nargs="*", default=["dgx-h100", "mixed"], help="hardware of node-a and node-b")
    actions.add_parser("down", help="end it")
    args = parser.parse_args()
    try:
        up(args.profiles) if args.action == "up" else down()
    except MissingError as missing:
        print(f"error: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
