"""Builds the program of an earlier commit into target/earlier, from the history of the repository."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from deploy.archives import extract

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "b202e58ffad723433a7c157a02141edd352547bb"
REQUESTED = "DRA_AGENT_TEST_EARLIER"
TREE = ROOT / "target/earlier" / COMMIT[:7]
PROGRAM = TREE / ".venv/bin/dra-agent"
BUILT = TREE / ".built"
VARIABLES_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VIRTUAL_ENV", "CARGO_TARGET_DIR")
"""Those of the outer `make` would change the build."""


def main() -> int:
    """Build the program, with an environment that has the libraries of its lock; return 1 if the commit is missing."""
    if BUILT.exists():
        return 0
    packed = subprocess.run(["git", "-C", ROOT, "archive", COMMIT], stdout=subprocess.PIPE, check=False)
    if packed.returncode != 0:
        print(f"the repository does not have the commit {COMMIT}: it needs the whole history", file=sys.stderr)
        return 1
    TREE.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        extract(archive, TREE)
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES_OF_MAKE}
    made = subprocess.run(["make", "build", "PROFILE=dev"], cwd=TREE, env=environment, check=False)
    if made.returncode == 0:
        BUILT.touch()
    return made.returncode


if __name__ == "__main__":
    sys.exit(main())
