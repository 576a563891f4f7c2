"""Outlives a run to take its cluster down, whatever ended the run: `python -m cluster.kube.reaper PLACE LOCK`.

The run holds the other end of standard input and says `DONE` there when nothing is to be taken down. An end without
that word means that it was killed. The lock of the place is inherited, so nobody takes the place before it is clear.
"""

from __future__ import annotations

import sys

from cluster.kube.cluster_dir import DONE, Place


def main() -> None:
    """Wait for the run's end, then do what it could not."""
    number, lock = map(int, sys.argv[1:])
    if sys.stdin.buffer.read() != DONE:
        Place(number, lock).clear()


if __name__ == "__main__":
    main()
