"""`make cluster` and `make cluster-down`: a cluster to try things on, with the agent on both nodes."""

from __future__ import annotations

import argparse
import sys

from cluster.kube.cluster_dir import BASE, Place

from . import build
from .agent import Agent
from .cluster import Cluster
from .prerequisites import MissingError


def up(profiles: list[str]) -> None:
    """Bring a cluster up, an agent on each node, and leave it running."""
    programs = build.programs()
    place = Place.take()
    try:
        cluster = Cluster(place, programs)
        cluster.start()
        agents = [
            Agent(node, profile, cluster.identity().kubeconfig(node.name)).start()
            for node, profile in zip(cluster.nodes, profiles, strict=True)
        ]
        for agent in agents:
            agent.ready()
        place.left.touch()
    except BaseException:
        place.clear()
        raise
    finally:
        place.release()
    print("The cluster runs:")
    for agent in agents:
        print(f"  {agent.node.name}  {agent.profile}, {len(agent.devices())} devices; log: {agent.process.log}")
    print(f"  export KUBECONFIG={cluster.kubeconfig} PATH={programs}:$PATH")
    print("  kubectl apply -f examples/classes && kubectl get resourceslices")
    print("`make cluster-down` ends it.")


def down() -> None:
    """End every cluster that was left running, and clear what killed ones left behind."""
    for directory in sorted(BASE.glob("*/")):
        place = Place.lock(int(directory.name))
        if place is None:
            print(f"{directory} belongs to a process that runs: left alone")
            continue
        place.clear()
        place.release()
        print(f"{directory} is gone")


def main() -> int:
    """Do what the command line says."""
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
