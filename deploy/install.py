"""`make install`: copies the built agent, the libraries that it was tested with, and its unit to DESTDIR.

It downloads nothing: the libraries are copied from the virtual environment of the build (requirements.lock). They are
installed in a separate directory, which other programs do not use and which can be removed as a whole.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

PACKAGE = "dra-agent"
REPOSITORY = Path(__file__).resolve().parents[1]
LAUNCHER = """#!{python} -I
import sys

sys.path.insert(0, {library!r})
from dra_agent.cli.main import main

sys.exit(main())
"""


def main() -> int:
    """Install the files; print one message and return 1 if this fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--destdir", type=Path, default=Path("/"), help="staging directory of a package build")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"))
    parser.add_argument("--sysconfdir", type=Path, default=Path("/etc"))
    parser.add_argument("--unitdir", type=Path, default=Path("/usr/lib/systemd/system"))
    parser.add_argument("--tmpfilesdir", type=Path, default=Path("/usr/lib/tmpfiles.d"))
    parser.add_argument("--python", type=Path, default=Path(sys.base_prefix) / "bin" / Path(sys.executable).name)
    args = parser.parse_args()
    destdir: Path = args.destdir.absolute()

    def staged(path: Path) -> Path:
        return destdir / path.relative_to("/")

    library = args.prefix / "lib" / PACKAGE
    command = args.prefix / "bin" / PACKAGE
    try:
        install_library(staged(library))
        compile_library(staged(library), library, args.python)
        install_file(staged(command), LAUNCHER.format(python=args.python, library=str(library)), 0o755)
        unit = (REPOSITORY / "systemd/dra-agent.service").read_text().replace("/usr/local/bin/dra-agent", str(command))
        unit = unit.replace("/etc/dra-agent/", f"{args.sysconfdir}/{PACKAGE}/")
        install_file(staged(args.unitdir / "dra-agent.service"), unit)
        tmpfiles = (REPOSITORY / "systemd/dra-agent.tmpfiles").read_text()
        install_file(staged(args.tmpfilesdir / "dra-agent.conf"), tmpfiles)
        config = staged(args.sysconfdir / PACKAGE / "config.toml")
        if config.exists():
            print(f"kept      {config}")
        else:
            install_file(config, (REPOSITORY / "systemd/config.toml").read_text())
        if args.python.is_relative_to("/root") or args.python.is_relative_to("/home"):
            print(f"note      the unit hides home directories (ProtectHome=), and {args.python} is in one. To use it,")
            print("          build with the system's Python (rm -r .venv; make build with /usr/bin first in PATH)")
    except OSError as error:
        print(f"install: {error.filename}: {error.strerror}; set DESTDIR to a writable directory", file=sys.stderr)
        return 1
    return 0


def install_library(target: Path) -> None:
    """Replace `target` with the agent's package and its dependencies, in one rename."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    shutil.copytree(
        REPOSITORY / "python/dra_agent", fresh / "dra_agent", ignore=shutil.ignore_patterns("__pycache__", "*.pyi")
    )
    for needed in sorted(requirements(PACKAGE)):
        copy_distribution(distribution(needed), fresh)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    print(f"installed {target}")


def compile_library(staged: Path, library: Path, python: Path) -> None:
    """Compile the installed files: a service with a read-only file system would otherwise compile them at every start.

    Compilation takes longer than the rest of a start. Python does not compare the byte code with the sources, because
    package managers and images change their modification times; an installation is replaced as a whole.
    """
    code = "import compileall, py_compile, sys; sys.exit(not compileall.compile_dir(sys.argv[1], quiet=2, stripdir="
    code += "sys.argv[1], prependdir=sys.argv[2], invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH))"
    done = subprocess.run([python, "-I", "-c", code, staged, library], check=False)
    if done.returncode != 0:
        print(f"note      {python} cannot compile {library}: the agent starts more slowly")


def requirements(name: str) -> set[str]:
    """Return the direct and indirect dependencies of a distribution."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for line in distribution(waiting.pop()).requires or []:
            requirement, _, marker = line.partition(";")
            needed = re.split(r"[\s<>=!~\[(]", requirement.strip())[0].lower()
            # Skip extras and dependencies for other systems; those for this system are installed.
            if "extra" in marker or needed in found or not is_installed(needed):
                continue
            found.add(needed)
            waiting.append(needed)
    return found


def is_installed(name: str) -> bool:
    """Return whether the build has a distribution; one for other systems is not installed."""
    try:
        distribution(name)
    except ModuleNotFoundError:
        return False
    return True


def copy_distribution(source: Distribution, target: Path) -> None:
    """Copy the files of a distribution, without scripts and byte code."""
    for file in source.files or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(str(file.locate())), path)


def install_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.rename(path)
    print(f"installed {path}")


if __name__ == "__main__":
    sys.exit(main())
