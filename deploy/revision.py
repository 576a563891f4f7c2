"""`make build`: writes the revision of these sources into the package, where the built agent reads it.

The revision is, in this order: the variable DRA_AGENT_REVISION, for builds without git; the commit of the repository
that these sources are the root of, with `-dirty` after uncommitted changes; the file that an sdist contains. Without
any of them the agent reports `unknown`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "python/dra_agent/revision.txt"
VARIABLE = "DRA_AGENT_REVISION"
FORM = re.compile(r"[0-9a-f]{40}(-dirty)?")


def main() -> int:
    """Write the file if the revision is known and another one; return 1 if the variable is not a revision."""
    given = os.environ.get(VARIABLE)
    if given and not FORM.fullmatch(given):
        print(f"{VARIABLE}={given}: not a commit in 40 hexadecimal digits, optionally with -dirty", file=sys.stderr)
        return 1
    revision = given or of_repository(ROOT)
    if revision is not None and (not FILE.exists() or FILE.read_text() != f"{revision}\n"):
        fresh = FILE.with_suffix(".new")
        fresh.write_text(f"{revision}\n")
        fresh.rename(FILE)
    return 0


def of_repository(root: Path) -> str | None:
    """Return the revision of the work tree at `root`; None if it is not the root of one, or git is missing."""
    top, commit = _git(root, "rev-parse", "--show-toplevel"), _git(root, "rev-parse", "HEAD")
    if not top or not commit or Path(top).resolve() != root:
        return None
    # Untracked files count, because a build packages them.
    return commit if _git(root, "status", "--porcelain") == "" else f"{commit}-dirty"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
