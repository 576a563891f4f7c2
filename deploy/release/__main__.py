"""`make release VERSION=1.2.3`: builds every artifact of a release from the commit that is checked out.

The artifacts are built in a copy of the commit, with the time of the commit, so that two builds write the same bytes.
`--twice` builds in two directories and names what differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.image import bases, binaries, buildah
from deploy.image.build import build as build_image
from deploy.release import archive, compare, provenance, sources
from deploy.release.sources import ReleaseError

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
BUILT = ("python/dra_agent/device_setup/lib/dra-agent-hook", "python/dra_agent/simulate/lib/libnvidia-ml.so.1")
"""What `make` compiles into the wheel, besides the extension that maturin compiles."""


def main() -> int:
    """Build the release; return 1 with the reason if that fails, or if two builds differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--output", type=Path, help="new directory (default: target/release-VERSION)")
    parser.add_argument("--without-image", action="store_true", help="where images cannot be built")
    parser.add_argument("--base", default=bases.BASE, help="image with Python; '' for the one in deploy/Containerfile")
    parser.add_argument("--rust", default=bases.RUST, help="image with Rust; '' for the one in deploy/Containerfile")
    parser.add_argument("--twice", action="store_true", help="build twice, and compare the results")
    args = parser.parse_args()
    output: Path = (args.output or ROOT / f"target/release-{args.version}").absolute()
    images = {} if args.without_image else {"BASE": args.base, "RUST": args.rust}
    try:
        sources.check(ROOT, args.version)
        if images and (reason := buildah.missing()):
            raise ReleaseError(f"{reason}; --without-image makes a release without it")
        build(args.version, output, output.with_name(f"{output.name}-build"), images)
        if args.twice:
            second = output.with_name(f"{output.name}-second")
            build(args.version, second, second.with_name(f"{second.name}-build"), images)
            if found := compare.differences(output, second):
                raise ReleaseError("\n".join(["two builds differ:", *found]))
            print("two builds have the same bytes")
    except (ReleaseError, binaries.BinaryError, buildah.BuildError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size / 2**20:8.2f} MiB  {path}")
    return 0


def build(version: str, output: Path, work: Path, images: Mapping[str, str]) -> None:
    """Write all artifacts of the commit to `output`, which is replaced. `images` are the bases; empty: no image."""
    for folder in (output, work):
        shutil.rmtree(folder, ignore_errors=True)
    output.mkdir(parents=True)
    revision, epoch = sources.commit(ROOT)
    checkout = work / "src"
    sources.export(ROOT, checkout)
    environment = build_environment(revision, epoch)

    def run(*command: str | Path) -> None:
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
            raise ReleaseError(f"{' '.join(map(str, command))}:\n{last}")

    run(sys.executable, "deploy/revision.py")
    # Before there are binaries: the sdist contains sources only.
    run(TOOLS / "maturin", "sdist", "--out", output)
    run("make", *BUILT)
    binaries.check_hook(checkout / BUILT[0], binaries.version(checkout))
    run(TOOLS / "maturin", "build", "--locked", "--profile", "dist", "--out", output)
    archive.write(output / f"dra-agent-chart-{version}.tgz", checkout / "deploy/helm/dra-agent", "dra-agent", epoch)
    archive.write(
        output / f"dra-agent-kustomize-{version}.tar.gz", checkout / "deploy/kustomize", f"kustomize-{version}", epoch
    )
    if (checkout / "man").is_dir():
        archive.write(output / f"dra-agent-man-{version}.tar.gz", checkout / "man", f"man-{version}/man1", epoch)
    if images:
        for variant in ("plain", "debug"):
            # The debug variant uses the layers that were built for the plain one.
            fresh = variant == "plain"
            build_image(
                buildah.Buildah(), checkout, output, variant=variant, arguments=images, epoch=epoch, fresh=fresh
            )
    provenance.write(output, checkout, version=version, revision=revision, bases=dict(images))
    shutil.rmtree(work)


def build_environment(revision: str, epoch: int) -> dict[str, str]:
    """Return the variables of the builds: no path of this machine and no time of today gets into an artifact."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    inherited = {name: value for name, value in os.environ.items() if name not in ("CARGO_TARGET_DIR", "RUSTFLAGS")}
    return {
        **inherited,
        "SOURCE_DATE_EPOCH": str(epoch),
        "DRA_AGENT_REVISION": revision,
        "CARGO_ENCODED_RUSTFLAGS": f"--remap-path-prefix={cargo}=/cargo",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
