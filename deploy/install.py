"""`make install` and `make uninstall`: the agent, its libraries and its unit, below DESTDIR.

The libraries are those of requirements.lock. They are installed in a separate directory, which other programs do not
use and which can be removed as a whole. Everything is prepared next to its target and tried with the interpreter that
will run it; then all targets are exchanged, or none.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

PACKAGE = "dra-agent"
UNIT = "dra-agent.service"
REPOSITORY = Path(__file__).resolve().parents[1]
MANUAL = REPOSITORY / "man"
BINARIES = ("_native.abi3.so", "device_setup/lib/dra-agent-hook", "simulate/lib/libnvidia-ml.so.1")
"""What `make build` compiles into the package."""
STATE = Path("/var/lib/dra-agent")
RUNTIME = Path("/run/dra-agent")
SHARED_MEMORY = Path("/dev/shm/dra-agent")  # noqa: S108 - a fixed path that dra-agent.tmpfiles creates at boot
SPECS = Path("/run/cdi")
SPEC_PATTERN = "dra-agent.internal-claim_*.json"
"""Only this driver's claims: other drivers have specs in the same directory, with names of the same form."""
DROP_INS = ("devices.conf", "kubernetes.conf", "mig.conf", "mps.conf", "net.conf")
LAUNCHER = """#!{python} -I
import sys

sys.path.insert(0, {library!r})
from {module} import main

sys.exit(main())
"""
DESCRIBE = (
    "import sys, sysconfig, json; print(json.dumps([sys.version_info[:2], sysconfig.get_config_var('EXT_SUFFIX')]))"
)
TRY = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
libraries = "argcomplete grpc google.protobuf h11 jeepney msgspec prometheus_client pynvml pyroute2 rich yaml"
for name in libraries.split():
    importlib.import_module(name)
import dra_agent._native
from dra_agent.cli.completion import script
from dra_agent.cli.main import main
if code := main(["--version"]):
    sys.exit(code)
print(json.dumps({shell: script(shell) for shell in sys.argv[2:]}))
"""
"""Imports what the agent needs; the last line that it prints has the completion scripts of the command."""
COMPILE = """
import compileall, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
staged, library = sys.argv[1:]
sys.exit(
    not compileall.compile_dir(staged, quiet=2, stripdir=staged, prependdir=library, invalidation_mode=mode)
)
"""

HELD = """
import sys
from pathlib import Path
from dra_agent.prepare.ledger_reader import read_copy
entries, _ = read_copy(Path(sys.argv[1])) or ([], None)
for entry in entries:
    print(f"{entry.namespace}/{entry.name}")
"""


class InstallError(Exception):
    """The installation cannot be completed; what was installed before is unchanged."""


class Layout:
    """Where the files of an installation are, below `destdir`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.destdir = Path(args.destdir).absolute()
        self.library: Path = args.prefix / "lib" / PACKAGE
        self.command: Path = args.prefix / "bin" / PACKAGE
        self.kubectl_plugin: Path = args.prefix / "bin/kubectl-dra"
        self.manual: Path = args.prefix / "share/man/man1"
        self.completions: dict[str, Path] = {
            "bash": args.prefix / "share/bash-completion/completions" / PACKAGE,
            # Debian's zsh reads the first directory for packages, and the second one below /usr/local.
            "zsh": args.prefix
            / ("share/zsh/vendor-completions" if args.prefix == Path("/usr") else "share/zsh/site-functions")
            / f"_{PACKAGE}",
            "fish": args.prefix / "share/fish/vendor_completions.d" / f"{PACKAGE}.fish",
        }
        self.examples: Path = args.prefix / "share/doc" / PACKAGE / "examples"
        self.unit: Path = args.unitdir / UNIT
        self.tmpfiles: Path = args.tmpfilesdir / "dra-agent.conf"
        self.config: Path = args.sysconfdir / PACKAGE / "config.toml"

    def staged(self, path: Path) -> Path:
        """Return the path of an installed file at the time of the installation."""
        return self.destdir / path.relative_to("/")

    def replaced(self) -> list[Path]:
        """Return what an installation replaces and its removal deletes."""
        pages = [self.manual / page.name for page in sorted(MANUAL.glob("*.1"))]
        files = [self.command, self.kubectl_plugin, self.unit, self.tmpfiles, *self.completions.values(), *pages]
        return [self.library, self.examples, *files]


class Replacement:
    """Files and directories that replace those at their targets together, or not at all."""

    def __init__(self) -> None:
        self._targets: list[Path] = []

    def new(self, target: Path) -> Path:
        """Return the path at which to create the successor of `target`."""
        path = target.with_name(target.name + ".new")
        delete(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._targets.append(target)
        return path

    def commit(self) -> None:
        """Exchange all targets with their successors; if one fails, all keep their former content."""
        exchanged: list[tuple[Path, bool]] = []
        try:
            for target in self._targets:
                existed = os.path.lexists(target)
                exchange(target, existed=existed)
                exchanged.append((target, existed))
        except OSError:
            for target, existed in reversed(exchanged):
                if existed:
                    exchange(target, existed=True)
                else:
                    target.rename(target.with_name(target.name + ".new"))
            raise

    def discard(self) -> None:
        """Remove what is next to the targets: successors before `commit`, and what they replaced after it."""
        for target in self._targets:
            delete(target.with_name(target.name + ".new"))


def exchange(target: Path, *, existed: bool) -> None:
    """Exchange a path and its successor. At every moment, one of them is at the path if the file system can do that."""
    new = target.with_name(target.name + ".new")
    if not existed:
        new.rename(target)
        return
    # RENAME_EXCHANGE, renameat2(2): Linux 3.15, glibc 2.28. Python has no function for it.
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, rename_exchange = -100, 2
    if libc.renameat2(at_cwd, os.fsencode(new), at_cwd, os.fsencode(target), rename_exchange) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(target))
    former = target.with_name(target.name + ".former")
    delete(former)
    target.rename(former)
    new.rename(target)
    former.rename(new)


def delete(path: Path) -> None:
    """Remove a file or a directory, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def base_interpreter() -> Path:
    """Return the interpreter of the build's environment; Debian's has no name without a version."""
    folder = Path(sys.base_prefix) / "bin"
    names = (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3", "python")
    return next((folder / name for name in names if (folder / name).exists()), Path(sys.executable))


def install(layout: Layout, python: Path, wheel: Path | None, *, compiled: bool) -> None:
    """Install all files, with byte code if `compiled`.

    Raises:
        InstallError: The build is incomplete, or `python` cannot run the agent. Nothing is changed.
        OSError: A file cannot be written. Nothing is changed.
    """
    replacement = Replacement()
    try:
        library = replacement.new(layout.staged(layout.library))
        library.mkdir()
        copy_package(library, wheel)
        add_dependencies(library, python)
        failure = f"{python} cannot run the agent"
        printed = run_python(python, failure, "-B", "-c", TRY, library, *layout.completions)
        scripts: dict[str, str] = json.loads(printed.splitlines()[-1])
        # A service with a read-only file system would otherwise compile at every start, which takes longer than the
        # rest of it. Package managers and images change modification times, so Python does not compare them.
        if compiled:
            run_python(python, f"{python} cannot compile the libraries", "-c", COMPILE, library, layout.library)
        texts = {
            layout.command: launcher(layout.library, python, "dra_agent.cli.main"),
            layout.kubectl_plugin: launcher(layout.library, python, "dra_agent.cli.kubectl_plugin"),
            layout.unit: unit_text(layout),
            layout.tmpfiles: (REPOSITORY / "systemd/dra-agent.tmpfiles").read_text(),
        }
        texts |= {layout.manual / page.name: page.read_text() for page in MANUAL.glob("*.1")}
        texts |= {layout.completions[shell]: script for shell, script in scripts.items()}
        config = layout.staged(layout.config)
        if not config.exists():
            texts[layout.config] = (REPOSITORY / "systemd/config.toml").read_text()
        for path, text in texts.items():
            new = replacement.new(layout.staged(path))
            new.write_text(text)
            new.chmod(0o755 if path in (layout.command, layout.kubectl_plugin) else 0o644)
        examples = replacement.new(layout.staged(layout.examples))
        examples.mkdir()
        for name in DROP_INS:
            (examples / name).write_text(drop_in_text(name, layout))
        kept = config.exists()
        replacement.commit()
    finally:
        replacement.discard()
    for path in layout.replaced():
        if path.parent != layout.manual:
            print(f"installed {layout.staged(path)}")
    print(f"{'kept     ' if kept else 'installed'} {config}")
    if python.is_relative_to("/root") or python.is_relative_to("/home"):
        print(f"note      the unit hides home directories (ProtectHome=), and {python} is in one.")
        print("          To run the agent as a service: make install PYTHON=/usr/bin/python3")


def launcher(library: Path, python: Path, module: str) -> str:
    """Return the program that runs `main` of a module in the directory `library`."""
    return LAUNCHER.format(python=python, library=str(library), module=module)


def unit_text(layout: Layout) -> str:
    """Return the unit with the paths of an installation."""
    text = (REPOSITORY / "systemd" / UNIT).read_text().replace("/usr/local/bin/dra-agent", str(layout.command))
    return text.replace("/etc/dra-agent/config.toml", str(layout.config))


def drop_in_text(name: str, layout: Layout) -> str:
    """Return a drop-in whose instructions name the installed example."""
    return (REPOSITORY / "systemd" / name).read_text().replace(f"systemd/{name}", str(layout.examples / name), 1)


def copy_package(target: Path, wheel: Path | None) -> None:
    """Copy the agent's package: from a wheel, or from the build of this repository."""
    if wheel is not None:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("dra_agent/"):
                    archive.extract(name, target)
        for name in BINARIES:
            if (target / "dra_agent" / name).exists():
                (target / "dra_agent" / name).chmod(0o755)
    else:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyi")
        shutil.copytree(REPOSITORY / "python/dra_agent", target / "dra_agent", ignore=ignored)
    missing = [name for name in BINARIES if not (target / "dra_agent" / name).exists()]
    if missing:
        raise InstallError(f"{', '.join(missing)}: not built; run `make build`")


def add_dependencies(target: Path, python: Path) -> None:
    """Add the libraries of the build, or, for another version of Python, a download of the same versions."""
    described = run_python(python, f"{python} does not work", "-c", DESCRIBE)
    version, suffix = json.loads(described)
    own = [list(sys.version_info[:2]), sysconfig.get_config_var("EXT_SUFFIX")]
    if tuple(version) < (3, 11):
        raise InstallError(f"{python} is Python {version[0]}.{version[1]}; the agent requires 3.11")
    needed = requirements(PACKAGE)
    if [version, suffix] == own:
        for name in sorted(needed):
            copy_distribution(distribution(name), target)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(locked(needed, (REPOSITORY / "requirements.lock").read_text()))
        file.flush()
        command: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        command += ["install", "--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes"]
        result = subprocess.run([*command, "--target", target, "-r", file.name], check=False)
    if result.returncode != 0:
        raise InstallError(f"pip cannot install the libraries for {python}; see its message above")
    delete(target / "bin")


def locked(names: set[str], lock: str) -> str:
    """Return the entries of a lock file for some distributions."""
    entries = re.split(r"\n(?=[a-z0-9])", lock)
    return "\n".join(entry for entry in entries if entry.partition("==")[0] in names)


def run_python(python: Path, failure: str, *arguments: str | Path) -> str:
    """Run an interpreter without the user's settings and return its output; raise InstallError if it fails."""
    try:
        result = subprocess.run([python, "-I", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise InstallError(f"{failure}: {error.strerror}; name another interpreter: make install PYTHON=...") from None
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines() or [f"exit code {result.returncode}"]
        raise InstallError(f"{failure}: {lines[-1]}")
    return result.stdout


def requirements(name: str) -> set[str]:
    """Return the direct and indirect dependencies of a distribution."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for line in distribution(waiting.pop()).requires or []:
            requirement, _, marker = line.partition(";")
            needed = re.split(r"[\s<>=!~\[(]", requirement.strip())[0].lower()
            # Skip extras, and dependencies for other systems: they are not installed.
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


def uninstall(layout: Layout, *, purge: bool) -> None:
    """Delete what `install` created; with `purge`, also the configuration, and the state and CDI specs of claims.

    Raises:
        InstallError: The service is running, or claims are held that `purge` would lose. Nothing is changed.
    """
    if layout.destdir == Path("/") and service_is_running(layout):
        raise InstallError("the service is running; stop it first: systemctl disable --now dra-agent")
    config, state, specs = (layout.staged(path) for path in (layout.config.parent, STATE, SPECS))
    if purge and state.exists():
        held = held_claims(state)
        if held:
            raise InstallError(
                f"claims are held: {', '.join(held)}. Containers may use their devices. Release them with the running "
                "agent (dra-agent claim delete), or uninstall without PURGE, which keeps them"
            )
    paths = [layout.staged(path) for path in layout.replaced()]
    if purge:
        paths += [config, state, *map(layout.staged, (RUNTIME, SHARED_MEMORY)), *sorted(specs.glob(SPEC_PATTERN))]
    for path in paths:
        if os.path.lexists(path):
            delete(path)
            print(f"removed   {path}")
    for path in (config, state):
        if path.exists():
            print(f"kept      {path}; to remove it too: make uninstall PURGE=1")


def service_is_running(layout: Layout) -> bool:
    """Return whether systemd runs the unit of this installation."""
    if not Path("/run/systemd/system").exists():
        return False
    command = ["systemctl", "show", "--property=ActiveState,FragmentPath", UNIT]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    fields = dict(line.partition("=")[::2] for line in shown.splitlines())
    # /lib is a link to /usr/lib.
    fragment = Path(fields.get("FragmentPath") or "/nonexistent").resolve()
    return fragment == layout.unit.resolve() and fields.get("ActiveState") not in ("inactive", "failed")


def held_claims(state: Path) -> list[str]:
    """Return the claims that hold devices, from the ledger in a state directory."""
    if not (state / "ledger").exists():
        return []
    failure = f"cannot read the claims in {state}"
    return run_python(Path(sys.executable), failure, "-c", HELD, state).splitlines()


def main() -> int:
    """Install or remove the files; print one message and return 1 if this fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--destdir", default="/", help="staging directory of a package build")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"))
    parser.add_argument("--sysconfdir", type=Path, default=Path("/etc"))
    parser.add_argument("--unitdir", type=Path, default=Path("/usr/lib/systemd/system"))
    parser.add_argument("--tmpfilesdir", type=Path, default=Path("/usr/lib/tmpfiles.d"))
    parser.add_argument("--python", type=Path, default=base_interpreter(), help="the interpreter that runs the agent")
    parser.add_argument("--wheel", type=Path, help="install the agent from this wheel instead of the build")
    parser.add_argument("--no-compile", action="store_true", help="leave byte code to the package's scripts")
    parser.add_argument("--uninstall", action="store_true", help="remove what was installed")
    parser.add_argument("--purge", action="store_true", help="with --uninstall: also remove configuration and state")
    args = parser.parse_args()
    layout = Layout(args)
    python = Path(shutil.which(args.python) or args.python).absolute()
    try:
        if args.uninstall:
            uninstall(layout, purge=args.purge)
        else:
            install(layout, python, args.wheel, compiled=not args.no_compile)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
    except OSError as error:
        print(f"install: {error.filename}: {error.strerror}; set DESTDIR to a writable directory", file=sys.stderr)
    except KeyboardInterrupt:
        print("install: interrupted; nothing was changed", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
