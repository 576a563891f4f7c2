"""`make wheel`: builds the wheels for hosts with an older glibc than this one, with every compiled part.

The agent's is built by maturin, those of `deploy/distributions` by hatchling.
The extension and the fake NVML are linked against the symbols of glibc GLIBC (RHEL 8), by zig. The hook is static. The
build fails if a wheel would not run there, or if it is incomplete.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TOOLS = Path(os.environ.get("DRA_AGENT_PACKAGING") or REPOSITORY / "target/packaging")
PACKAGES = ("ziglang==0.17.1", "cargo-zigbuild==0.24.0", "maturin==1.16.0", "hatchling==1.33.0")
"""Only this build needs them, so they are not in the environment of the development."""
GLIBC = "2.28"
EXTENSION = "dra_agent/_native.abi3.so"
FAKE = "dra_simulate/lib/libnvidia-ml.so.1"
HOOK = "dra_agent/device_setup/lib/dra-agent-hook"
COMPILED = {"dra_agent": (EXTENSION, HOOK), "dra_agent_simulate": (FAKE,)}
"""The compiled parts of each wheel, by its distribution."""
# e_machine of ELF: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
MACHINES = {"x86_64": 62, "aarch64": 183}


def main() -> int:
    """Build the wheels and print their paths, the agent's first; return 1 if this fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "target/packages", help="directory of the wheels")
    parser.add_argument("--native", action="store_true", help="use the compiled parts of `make build`, for this glibc")
    parser.add_argument(
        "--machine",
        choices=sorted(MACHINES),
        default=platform.machine(),
        help="of the hosts (default: this one); another one needs its Rust target and cross compiler",
    )
    args = parser.parse_args()
    if args.native and args.machine != platform.machine():
        parser.error("--native is for this machine")
    try:
        with tempfile.TemporaryDirectory() as folder:
            built = build_native(Path(folder)) if args.native else build_portable(Path(folder), args.machine)
            for wheel in built:
                remove_build_path(wheel, REPOSITORY)
                check(wheel, None if args.native else GLIBC, args.machine)
            args.output.mkdir(parents=True, exist_ok=True)
            for wheel in built:
                print(shutil.move(wheel, args.output / wheel.name))
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        print(f"wheel: {error}", file=sys.stderr)
        return 1
    return 0


def build_native(folder: Path) -> list[Path]:
    """Build wheels of the current build, and return their paths."""
    maturin: list[str | Path] = [Path(sys.executable).parent / "maturin", "build", "--locked", "--profile", "release"]
    run([*maturin, "--auditwheel", "check", "--interpreter", sys.executable, "--out", folder])
    (built,) = folder.glob("*.whl")
    return [built, *build_others(folder, Path(sys.executable))]


def build_others(folder: Path, python: Path, **variables: str) -> list[Path]:
    """Build the wheels of the other distributions with an interpreter that has hatchling, and return their paths."""
    built: list[Path] = []
    for project in sorted((REPOSITORY / "deploy/distributions").glob("*/pyproject.toml")):
        output = folder / project.parent.name
        subprocess.run(
            [python, "-m", "hatchling", "build", "-t", "wheel", "-d", output],
            cwd=project.parent,
            env=os.environ | variables,
            stdout=sys.stderr,
            check=True,
        )
        built += output.glob("*.whl")
    return built


def build_portable(folder: Path, machine: str) -> list[Path]:
    """Build optimized wheels for GLIBC, and return their paths.

    zig links the extension and the fake NVML for another machine too; the static hook needs the libc.a of that machine,
    which Debian's cross compiler has.
    """
    if not (TOOLS / "bin/cargo-zigbuild").exists():
        run([sys.executable, "-m", "venv", TOOLS])
        run([TOOLS / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES])
    target = f"{machine}-unknown-linux-gnu"
    is_foreign = machine != platform.machine()
    cargo = ["--locked", "--profile", "dist"]
    run(["cargo", "zigbuild", *cargo, "--package", "dra-nvml-fake", "--target", f"{target}.{GLIBC}"])
    tag = f"manylinux_{GLIBC.replace('.', '_')}"
    maturin: list[str | Path] = [TOOLS / "bin/maturin", "build", *cargo, "--zig", "--compatibility", tag]
    maturin += ["--target", target] if is_foreign else ["--interpreter", sys.executable]
    run([*maturin, "--auditwheel", "check", "--out", folder])
    (built,) = folder.glob("*.whl")
    compiled = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / target / "dist"
    others = build_others(folder, TOOLS / "bin/python", DRA_AGENT_WHEEL_PLATFORM=f"{tag}_{machine}")
    for wheel in others:
        if FAKE in COMPILED.get(distribution_of(wheel), ()):
            replace(wheel, FAKE, (compiled / "libnvidia_ml.so").read_bytes())
    if is_foreign:
        # `make build` compiles the hook for this machine only.
        linker = f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER"
        hook: list[str | Path] = ["cargo", "rustc", *cargo, "--package", "dra-agent-hook", "--bin", "dra-agent-hook"]
        hook += ["--target", target, "--", "-C", "target-feature=+crt-static"]
        run(hook, **{linker: os.environ.get(linker, f"{machine}-linux-gnu-gcc")})
        replace(built, HOOK, (compiled / "dra-agent-hook").read_bytes())
    return [built, *others]


def distribution_of(wheel: Path) -> str:
    """Return the distribution of a wheel, as it is in the file's name."""
    return wheel.name.partition("-")[0]


def replace(wheel: Path, name: str, content: bytes) -> None:
    """Replace a file of a wheel, and its line in RECORD."""
    fresh = wheel.with_name(wheel.name + ".new")
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            data = content if entry.filename == name else source.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = [line for line in data.decode().splitlines() if not line.startswith(f"{name},")]
                data = "".join(f"{line}\n" for line in [f"{name},sha256={digest},{len(content)}", *lines]).encode()
            target.writestr(entry, data)
    fresh.rename(wheel)


def remove_build_path(wheel: Path, path: Path) -> None:
    """Replace the path of the sources in the bills of materials, so that builds in other directories are equal."""
    with zipfile.ZipFile(wheel) as archive:
        bills = {name: archive.read(name) for name in archive.namelist() if ".dist-info/sboms/" in name}
    for name, content in bills.items():
        replace(wheel, name, content.replace(f"file://{path}/".encode(), b"file:///src/"))


def check(wheel: Path, glibc: str | None, machine: str) -> None:
    """Check that a wheel has every compiled part for a machine, and that each runs with a version of glibc, if given.

    Raises:
        ValueError: One is missing, is for another machine, or needs a newer glibc.
    """
    compiled = COMPILED.get(distribution_of(wheel), ())
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(set(compiled) - set(archive.namelist())):
            raise ValueError(f"{wheel.name} has no {name}; run `make build`")
        for name in compiled:
            found = int.from_bytes(archive.read(name)[18:20], "little")
            if found != MACHINES[machine]:
                raise ValueError(f"{name} is for ELF machine {found}, not for {machine}")
        for name in set(compiled) - {HOOK} if glibc is not None else ():
            needed = {int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\b", archive.read(name))}
            if max(needed, default=0) > int(GLIBC.partition(".")[2]):
                raise ValueError(f"{name} needs glibc 2.{max(needed)}, newer than {GLIBC}")


def run(command: list[str | Path], **variables: str) -> None:
    """Run a step with the tools first in PATH; its messages go to standard error."""
    environment = os.environ | variables | {"PATH": f"{TOOLS / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=sys.stderr, check=True)


if __name__ == "__main__":
    sys.exit(main())
