"""`make sdist`: builds the source distribution from the last commit, without binaries.

It has the documentation and what `make build`, `make wheel`, `make deb` and `make install` need. maturin would include
only the crates of the extension. The same commit gives the same file.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
REVISION = "python/dra_agent/revision.txt"
EXCLUDED = (".ci", ".github", "benchmarks", "fuzz", "tests")
"""Folders of contributors, which would be nearly half of the archive: tests, recorded answers, inputs of fuzzing."""


def main() -> int:
    """Build the archive in the directory of the first argument and print its path; return 1 if this fails."""
    try:
        print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "target/packages"))
    except subprocess.CalledProcessError as error:
        print(f"sdist: {error}: {error.stderr.decode(errors='replace').strip()}", file=sys.stderr)
        return 1
    return 0


def build(output: Path) -> Path:
    """Build the archive and return its path."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    name = f"{project['name'].replace('-', '_')}-{project['version']}"
    paths = (".", *(f":(exclude){folder}" for folder in EXCLUDED))
    archive = run("git", "-C", str(REPOSITORY), "archive", f"--prefix={name}/", "--format=tar", "HEAD", "--", *paths)
    revision = run("git", "-C", str(REPOSITORY), "rev-parse", "HEAD")
    packed = io.BytesIO()
    # git has checked that the repository is intact, and writes regular files and directories.
    with tarfile.open(fileobj=io.BytesIO(archive)) as source, tarfile.open(fileobj=packed, mode="w") as target:
        members = source.getmembers()
        for member in members:
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
        for file, content in (("PKG-INFO", metadata()), (REVISION, revision)):
            added = tarfile.TarInfo(f"{name}/{file}")
            added.size, added.mtime, added.mode = len(content), members[0].mtime, 0o644
            target.addfile(added, io.BytesIO(content))
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name}.tar.gz"
    path.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))
    return path


def metadata() -> bytes:
    """Return the core metadata of the distribution, as it is in the wheel."""
    maturin = str(Path(sys.executable).parent / "maturin")
    with tempfile.TemporaryDirectory() as folder:
        run(maturin, "pep517", "write-dist-info", "--metadata-directory", folder, "--interpreter", sys.executable)
        (file,) = Path(folder).glob("*.dist-info/METADATA")
        return file.read_bytes()


def run(*command: str) -> bytes:
    """Run a command in the repository and return its output."""
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True).stdout


if __name__ == "__main__":
    sys.exit(main())
