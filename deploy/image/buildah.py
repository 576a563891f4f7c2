"""Runs buildah with its own storage in the cache directory, next to the programs of the test cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
STORAGE = CACHE / "dra-agent-image/storage"
RUN = Path("/run/dra-agent-image")


class BuildError(Exception):
    """An image cannot be built."""


class Buildah:
    """The program, for root. Raises BuildError where it cannot be used, and where a command fails."""

    def __init__(self, storage: Path = STORAGE) -> None:
        if reason := missing():
            raise BuildError(reason)
        self._command = ["buildah", "--root", str(storage), "--runroot", str(RUN)]

    def run(self, command: str, *arguments: str) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            [*self._command, command, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
            raise BuildError(f"buildah {command}: exit code {done.returncode}:\n{last}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Return whether an image exists."""
        try:
            self.run("inspect", "--type", "image", image)
        except BuildError:
            return False
        return True

    def commit(self, container: str, image: str) -> None:
        """Make an image of a working container, and remove the container."""
        self.run("commit", "--quiet", "--rm", container, image)


def missing() -> str | None:
    """Return why images cannot be built here; None if they can."""
    if shutil.which("buildah") is None:
        return "buildah is not installed (Debian package buildah)"
    if os.geteuid() != 0:
        return "images are built as root: buildah needs it to run a build with isolation chroot"
    return None
