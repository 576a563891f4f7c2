"""`make image-base`: local images in place of the two that deploy/Containerfile names, for machines without a registry.

The base is a Debian with Python and a C compiler, made by mmdebstrap from the packages that are recorded for its
architecture; its name contains the hash of that record. The other one has the Rust toolchain of this machine, whose
version is that of rust-toolchain.toml. Requires root.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection
from pathlib import Path

from deploy.image import packages
from deploy.image.buildah import Buildah, BuildError

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
TOOLCHAIN: str = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
BASE = f"localhost/dra-agent-base:{SUITE}-{packages.digest()[:12]}"
RUST = f"localhost/dra-agent-rust:{TOOLCHAIN}"
INCLUDED = "busybox-static,ca-certificates,gcc,libc6-dev,python3,python3-venv"
MIRROR = "http://deb.debian.org/debian"
ARCHIVE = "base.tar"
LOCAL_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""How this machine reaches package registries; none of them gets into the agent's image."""


def main() -> int:
    """Create the images that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replace", action="store_true", help="replace existing images")
    parser.add_argument("--update-lock", action="store_true", help="record the packages of today instead of a build")
    args = parser.parse_args()
    try:
        if args.update_lock:
            with tempfile.TemporaryDirectory(prefix="dra-agent-base-") as folder:
                packages.write(bootstrap(Path(folder)))
            print(f"wrote {packages.LOCK.relative_to(ROOT)}")
            return 0
        create({BASE, RUST}, Buildah(), replace=args.replace)
    except BuildError as error:
        print(f"image-base: {error}", file=sys.stderr)
        return 1
    return 0


def create(names: Collection[str], buildah: Buildah, *, replace: bool = False) -> None:
    """Create those of the local images that are named and missing; with `replace` also existing ones."""
    for name, create_one in ((BASE, create_base), (RUST, create_rust)):
        if name in names and (replace or not buildah.has(name)):
            create_one(buildah)
            print(f"created {name}")


def create_base(buildah: Buildah) -> None:
    """Create the base from Debian packages; raises BuildError if they are not the recorded ones."""
    with tempfile.TemporaryDirectory(prefix="dra-agent-base-") as folder:
        found = bootstrap(Path(folder))
        try:
            packages.check(found)
        except ValueError as error:
            hint = "if that is intended, `make image-base ARGS=--update-lock` records the packages of today"
            raise BuildError(f"{error}; {hint}") from error
        archive = Path(folder) / ARCHIVE
        container = buildah.run("from", "scratch")
        buildah.run("add", container, str(archive), "/")
        for name in LOCAL_FILES:
            if Path(name).exists():
                buildah.run("copy", container, name, name)
        buildah.commit(container, BASE)


def bootstrap(folder: Path) -> list[packages.Package]:
    """Write the root file system to ARCHIVE in a directory, and return its packages."""
    if shutil.which("mmdebstrap") is None:
        raise BuildError("mmdebstrap is not installed (Debian package mmdebstrap)")
    listed, index = folder / "installed", folder / "index"
    form = r"\${Package} \${Version} \${Architecture}\n"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}"]
    command += [f'--customize-hook=dpkg-query --admindir="$1/var/lib/dpkg" --show --showformat="{form}" > {listed}']
    # The lists that apt has verified; apt-cache would print installed packages without hashes.
    command += [f'--customize-hook=/usr/lib/apt/apt-helper cat-file "$1"/var/lib/apt/lists/*_Packages* > {index}']
    done = subprocess.run([*command, SUITE, str(folder / ARCHIVE), MIRROR], check=False)
    if done.returncode != 0:
        raise BuildError(f"mmdebstrap: exit code {done.returncode}")
    try:
        return packages.installed(listed.read_text(), index.read_text())
    except ValueError as error:
        raise BuildError(str(error)) from error


def create_rust(buildah: Buildah) -> None:
    """Create the image with the toolchain that rustc of this machine belongs to, without its documentation."""
    done = subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"rustc: {done.stderr.strip()}")
    version = subprocess.run(["rustc", "--version"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if version.split()[1] != TOOLCHAIN:
        raise BuildError(f"rustc is {version.strip()}, and rust-toolchain.toml names {TOOLCHAIN}")
    sysroot = Path(done.stdout.strip()).resolve()
    native = f"{platform.machine()}-unknown-linux-gnu"
    container = buildah.run("from", "scratch")
    toolchain = "/usr/local/rustup/toolchain"
    for name in ("bin/cargo", "bin/rustc", "lib/rustlib/components"):
        buildah.run("copy", container, str(sysroot / name), f"{toolchain}/{name}")
    for library in sorted((sysroot / "lib").glob("*.so*")):
        buildah.run("copy", container, str(library), f"{toolchain}/lib/{library.name}")
    buildah.run("copy", container, str(sysroot / "lib/rustlib" / native), f"{toolchain}/lib/rustlib/{native}")
    with tempfile.TemporaryDirectory(prefix="dra-agent-rust-") as folder:
        links = Path(folder) / "bin"
        links.mkdir()
        for name in ("cargo", "rustc"):
            (links / name).symlink_to(f"{toolchain}/bin/{name}")
        buildah.run("copy", container, str(folder), "/usr/local/cargo")
    buildah.commit(container, RUST)


if __name__ == "__main__":
    sys.exit(main())
