"""`make release VERSION=1.2.3`: builds every artifact of a release from the commit that is checked out.

The artifacts are built in a copy of the commit, with the time of the commit and without paths of this machine.
`--twice` builds in two directories and names what differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from deploy.image import bases, binaries, buildah
from deploy.image.build import build as build_image
from deploy.release import archive, compare, provenance, sources
from deploy.release.sources import ReleaseError

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("sdist", "wheel", "deb", "chart", "kustomize", "man", "image")
BUILT = ("python/dra_agent/device_setup/lib/dra-agent-hook", "python/dra_simulate/lib/libnvidia-ml.so.1")
"""What `make` compiles into the wheels, besides the parts that deploy/wheel.py compiles."""
DEB_WHEELS = ("dra_agent-*.whl", "dra_agent_cluster-*.whl")
"""The wheels that the Debian package is made from."""


def main() -> int:
    """Build the release; return 1 with the reason if that fails, or if two builds differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--output", type=Path, help="new directory (default: target/release-VERSION)")
    parser.add_argument("--parts", type=parts, default=PARTS, help=f"only these (default: {','.join(PARTS)})")
    parser.add_argument("--without-image", action="store_true", help="where images cannot be built")
    parser.add_argument("--base", default=bases.BASE, help="image with Python; '' for the one in deploy/Containerfile")
    parser.add_argument("--rust", default=bases.RUST, help="image with Rust; '' for the one in deploy/Containerfile")
    parser.add_argument("--twice", action="store_true", help="build twice, and compare the results")
    args = parser.parse_args()
    output: Path = (args.output or ROOT / f"target/release-{args.version}").absolute()
    wanted = [part for part in args.parts if not (args.without_image and part == "image")]
    images = {"BASE": args.base, "RUST": args.rust} if "image" in wanted else {}
    try:
        sources.check(ROOT, args.version)
        if images and (reason := buildah.missing()):
            raise ReleaseError(f"{reason}; --without-image makes a release without it")
        if images:
            bases.create(images.values(), buildah.Buildah())
        build(args.version, output, output.with_name(f"{output.name}-build"), wanted, images)
        if args.twice:
            second = output.with_name(f"{output.name}-second")
            build(args.version, second, second.with_name(f"{second.name}-build"), wanted, images)
            if found := compare.differences(output, second):
                raise ReleaseError("\n".join(["two builds differ:", *found]))
            print(f"two builds have the same bytes: {', '.join(wanted)}")
    except (ReleaseError, binaries.BinaryError, buildah.BuildError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size / 2**20:8.2f} MiB  {path}")
    # Its key is the distributor's; docs/how-to/install/image.md has what users verify.
    print(f"to sign all of them: gpg --armor --detach-sign {output / provenance.SUMS}")
    return 0


def parts(text: str) -> list[str]:
    """Return the parts of a list with commas; the package is made from the wheel."""
    chosen = text.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    if "deb" in chosen and "wheel" not in chosen:
        raise argparse.ArgumentTypeError("deb is made from the wheel: add wheel")
    return [part for part in PARTS if part in chosen]


def build(version: str, output: Path, work: Path, wanted: Collection[str], images: Mapping[str, str]) -> None:
    """Write the wanted artifacts of the commit to `output`, which is replaced. `images` are the bases."""
    for folder in (output, work):
        shutil.rmtree(folder, ignore_errors=True)
    output.mkdir(parents=True)
    revision, epoch = sources.commit(ROOT)
    checkout = work / "src"
    sources.export(ROOT, checkout)
    environment = build_environment(checkout, revision, epoch)

    def run(*command: str | Path) -> None:
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
            raise ReleaseError(f"{' '.join(map(str, command))}:\n{last}")

    run(sys.executable, "deploy/revision.py")
    if "sdist" in wanted:
        # Of the checkout: it is packed by git, and the copy is not a repository.
        run(sys.executable, ROOT / "deploy/sdist.py", output)
    if "wheel" in wanted:
        run("make", *BUILT)
        binaries.check_hook(checkout / BUILT[0], binaries.version(checkout))
        run(sys.executable, "deploy/wheel.py", "--output", output)
    if "deb" in wanted:
        wheels = [f"--wheel={wheel}" for pattern in DEB_WHEELS for wheel in output.glob(pattern)]
        run(sys.executable, "deploy/deb/build.py", *wheels, "--output", output)
    for part, suffix, source, prefix in (
        ("chart", "tgz", "deploy/helm/dra-agent", "dra-agent"),
        ("kustomize", "tar.gz", "deploy/kustomize", f"kustomize-{version}"),
        ("man", "tar.gz", "man", f"man-{version}/man1"),
    ):
        if part in wanted:
            archive.write(output / f"dra-agent-{part}-{version}.{suffix}", checkout / source, prefix, epoch)
    if images:
        for variant in ("plain", "debug"):
            # The debug variant uses the layers that were built for the plain one.
            fresh = variant == "plain"
            build_image(
                buildah.Buildah(), checkout, output, variant=variant, arguments=images, epoch=epoch, fresh=fresh
            )
    provenance.write(output, checkout, version=version, revision=revision, bases=dict(images))
    shutil.rmtree(work)


def build_environment(checkout: Path, revision: str, epoch: int) -> dict[str, str]:
    """Return the variables of the builds: no path of this machine and no time of today gets into an artifact."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    inherited = {name: value for name, value in os.environ.items() if name not in ("CARGO_TARGET_DIR", "RUSTFLAGS")}
    return {
        **inherited,
        "SOURCE_DATE_EPOCH": str(epoch),
        "DRA_AGENT_REVISION": revision,
        "CARGO_ENCODED_RUSTFLAGS": f"--remap-path-prefix={cargo}=/cargo\x1f--remap-path-prefix={checkout}=/src",
        # The tools of `make wheel` are installed once, not in each copy.
        "DRA_AGENT_PACKAGING": str(ROOT / "target/packaging"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
