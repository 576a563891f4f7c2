"""Outlives a run and removes its cluster if the run was killed: `python -m cluster.kube.reaper NUMBER LOCK`.

The run holds the other end of standard input and writes `DONE` there when nothing has to be removed. End of file
without it means that the run was killed. The lock is inherited, so no other run acquires the directory before it is
clear.
"""

from __future__ import annotations

import sys

from cluster.kube.cluster_dir import DONE, ClusterDir


def main() -> None:
    """Wait for the end of the run, then remove its cluster if needed."""
    number, lock = map(int, sys.argv[1:])
    if sys.stdin.buffer.read() != DONE:
        ClusterDir(number, lock).clear()


if __name__ == "__main__":
    main()
