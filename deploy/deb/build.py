"""`make deb`: builds a Debian package from the build of this repository, or from a wheel.

The package contains its libraries and runs under the Python of the Debian release. The files are those of `make
install` with PREFIX=/usr; byte code is compiled when the package is installed. The same sources give the same package:
times are those of the last commit (SOURCE_DATE_EPOCH), and everything belongs to root.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parents[1]
SCRIPTS = ("postinst", "prerm", "postrm")
CONFFILE = "/etc/dra-agent/config.toml"
MAINTAINER = f"{os.environ.get('DEBFULLNAME', 'dra-agent')} <{os.environ.get('DEBEMAIL', 'dra-agent@localhost')}>"
"""Variables of Debian's own tools, set by the distributor of the package."""
LEFT_OUT = ("dra_simulate",)
"""Packages of the repository that no host with accelerators needs."""
EXECUTABLE = re.compile(r"usr/bin/[^/]+|.*/dra-agent-hook|DEBIAN/(postinst|prerm|postrm)")


class BuildError(Exception):
    """The package cannot be built."""


def main() -> int:
    """Build the package and print its path; print one message and return 1 if this fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "target/packages", help="directory of the package")
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"), help="the release's interpreter")
    parser.add_argument(
        "--wheel", type=Path, action="append", default=[], dest="wheels", help="package this wheel instead of the build"
    )
    parser.add_argument("--version", default=None, help="version of the package (default: that of the agent, and -1)")
    parser.add_argument("--compression", default="xz", help="of the package, as for dpkg-deb -Z (default: xz)")
    args = parser.parse_args()
    version = args.version or agent_version() + "-1"
    try:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            stage(root, args.python, args.wheels, version)
            print(pack(root, args.output, args.compression))
    except (BuildError, OSError) as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    return 0


def stage(root: Path, python: Path, wheels: Sequence[Path], version: str) -> None:
    """Create the files of the package below `root`.

    Raises:
        BuildError: The files cannot be installed below `root`.
    """
    command: list[str | Path] = [
        sys.executable,
        REPOSITORY / "deploy/install.py",
        "--destdir",
        root,
        "--prefix",
        "/usr",
    ]
    command += ["--python", python, "--no-compile", *(f"--without={package}" for package in LEFT_OUT)]
    for wheel in wheels:
        command += ["--wheel", wheel]
    run(command)
    run(["strip", "--strip-unneeded", *map(str, sorted(root.rglob("*.so")))])
    epoch = source_date()
    add_documentation(root, version, epoch)
    add_metadata(root, version, python)
    for path in [*root.rglob("*"), root]:
        if not path.is_symlink():
            # A umask of the build has no effect on the package.
            executable = path.is_dir() or EXECUTABLE.fullmatch(str(path.relative_to(root)))
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def pack(root: Path, output: Path, compression: str) -> Path:
    """Build the package of the files below `root` and return its path.

    Raises:
        BuildError: dpkg-deb fails.
    """
    output.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", root, output]
    built = run(command, SOURCE_DATE_EPOCH=str(source_date()))
    return output / built.strip().removesuffix("'.").rpartition("/")[2]


def add_documentation(root: Path, version: str, epoch: int) -> None:
    """Add the copyright, a changelog and lintian overrides; compress the manual pages."""
    folder = root / "usr/share/doc/dra-agent"
    shutil.copy(FOLDER / "copyright", folder)
    entry = f"dra-agent ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
    entry += f" -- {MAINTAINER}  {formatdate(epoch)}\n"
    compress(folder / "changelog.Debian.gz", entry)
    compress(folder / "changelog.gz", (REPOSITORY / "CHANGELOG.md").read_text())
    for page in (root / "usr/share/man").rglob("*.1"):
        compress(page.with_name(page.name + ".gz"), page.read_text())
        page.unlink()
    overrides = root / "usr/share/lintian/overrides/dra-agent"
    overrides.parent.mkdir(parents=True)
    shutil.copy(FOLDER / "lintian-overrides", overrides)


def add_metadata(root: Path, version: str, python: Path) -> None:
    """Add the files of DEBIAN/."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    size = sum(-(-path.stat().st_size // 1024) for path in files)
    minor = int(run([python, "-c", "import sys; print(sys.version_info.minor)"]))
    debian = root / "DEBIAN"
    debian.mkdir()
    fields = {
        "version": version,
        "architecture": run(["dpkg", "--print-architecture"]).strip(),
        "maintainer": MAINTAINER,
        "installed_size": size,
        "python": f"3.{minor}",
        "next_python": f"3.{minor + 1}",
        "libc": newest_glibc(files),
    }
    (debian / "control").write_text((FOLDER / "control").read_text().format(**fields))
    (debian / "conffiles").write_text(f"{CONFFILE}\n")
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}"
        for path in files
    ]
    (debian / "md5sums").write_text("".join(f"{line}\n" for line in sums if not line.endswith(f"  {CONFFILE[1:]}")))
    for name in SCRIPTS:
        shutil.copy(FOLDER / name, debian / name)


def newest_glibc(files: list[Path]) -> str:
    """Return the newest version of glibc of which the shared libraries use a symbol."""
    names = {
        name for path in files if ".so" in path.name for name in re.findall(rb"GLIBC_2\.(\d+)\b", path.read_bytes())
    }
    return f"2.{max(map(int, names), default=28)}"


def compress(path: Path, text: str) -> None:
    """Write a file as `gzip -9n` does, which is the same for the same text."""
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def agent_version() -> str:
    """Return the version of the agent."""
    version: str = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    return version


def source_date() -> int:
    """Return the time of the sources, in seconds since 1970: of the last commit, or of the change log without git."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command: list[str | Path] = ["git", "-C", REPOSITORY, "log", "-1", "--format=%ct"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(result.stdout.strip() or (REPOSITORY / "CHANGELOG.md").stat().st_mtime)


def run(command: list[str | Path], **environment: str) -> str:
    """Run a command and return its output.

    Raises:
        BuildError: It fails; with its message.
    """
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    if result.returncode != 0:
        raise BuildError(result.stderr.strip() or f"{command[0]}: exit code {result.returncode}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
