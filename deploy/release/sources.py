"""The sources of a release: one commit of a clean checkout, whose files all have one version."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from deploy.archives import extract

VERSIONS = {
    "pyproject.toml": r'^(?:version = "|(?:cluster|simulate) = \["dra-agent-[a-z]+==)([^"\n]+)"',
    "deploy/distributions/cluster/pyproject.toml": r'^(?:version = "|dependencies = \["dra-agent==)([^"\n]+)"',
    "deploy/distributions/simulate/pyproject.toml": r'^(?:version = "|dependencies = \["dra-agent==)([^"\n]+)"',
    "Cargo.toml": r'^version = "(.+)"$',
    "python/dra_agent/__init__.py": r'^__version__ = "(.+)"$',
    "python/dra_cluster/__init__.py": r'^__version__ = "(.+)"$',
    "python/dra_simulate/__init__.py": r'^__version__ = "(.+)"$',
    "deploy/helm/dra-agent/Chart.yaml": r'^(?:version|appVersion): "?([^"\n]+)"?$',
}
"""Where the version is written, and how."""


class ReleaseError(Exception):
    """A release cannot be made of these sources, or on this machine."""


def check(root: Path, version: str) -> None:
    """Raise ReleaseError unless the checkout is clean, and every file has this version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"VERSION={version}: not a version of the form 1.2.3")
    wrong = [f"{name} has {found}" for name, found in versions(root) if found != version]
    if wrong:
        raise ReleaseError(f"VERSION={version}, but {', '.join(wrong)}")
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        raise ReleaseError(f"the checkout has uncommitted changes; commit or remove them: {', '.join(changed[:5])}")


def versions(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each place of the version with what is there."""
    for name, pattern in VERSIONS.items():
        found = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
        yield from ((name, text) for text in found or ["no version"])


def commit(root: Path) -> tuple[str, int]:
    """Return the id of the commit, and its time in seconds since 1970."""
    revision, time = git(root, "log", "-1", "--format=%H %ct").split()
    return revision, int(time)


def export(root: Path, target: Path) -> None:
    """Write the files of the commit, and nothing else of the checkout, to a new directory."""
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    git(root, "archive", "--format=tar", f"--output={archive}", "HEAD")
    with tarfile.open(archive) as tar:
        extract(tar, target, filter_="tar")
    archive.unlink()


def git(root: Path, *arguments: str) -> str:
    """Run git in a checkout and return its output."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ReleaseError("git is not installed") from None
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
