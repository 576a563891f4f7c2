"""`make image`: builds an image with deploy/Containerfile, and writes it as an OCI archive with its bill of materials.

The archive depends on the layers alone: it is sorted, and its times are those of the commit.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.image import bases
from deploy.image.buildah import ROOT, Buildah, BuildError

NAME = "localhost/dra-agent"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
SBOM = "usr/share/doc/dra-agent/sbom.cdx.json"


def main() -> int:
    """Build; return 1 with the reason if that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=("plain", "debug"), default="plain")
    parser.add_argument("--base", default=bases.BASE, help="image with Python; '' for the one in deploy/Containerfile")
    parser.add_argument("--rust", default=bases.RUST, help="image with Rust; '' for the one in deploy/Containerfile")
    parser.add_argument("--source", default="", help="address of the sources, for the label")
    parser.add_argument("--context", type=Path, default=ROOT)
    parser.add_argument("--output", type=Path, default=ROOT / "target/image")
    parser.add_argument("--no-cache", action="store_true", help="use no layer of an earlier build")
    args = parser.parse_args()
    try:
        buildah = Buildah()
        bases.create({args.base, args.rust}, buildah)
        archive = build(
            buildah,
            args.context,
            args.output,
            variant=args.variant,
            arguments={"BASE": args.base, "RUST": args.rust, "SOURCE": args.source},
            # The time is part of what layers are found by: with that of the commit, each commit would compile again.
            epoch=source_date(args.context) if args.no_cache else 0,
            fresh=args.no_cache,
        )
    except BuildError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(f"wrote {archive} ({archive.stat().st_size / 2**20:.1f} MiB)")
    return 0


def build(
    buildah: Buildah,
    context: Path,
    output: Path,
    *,
    variant: str,
    arguments: Mapping[str, str],
    epoch: int,
    fresh: bool,
) -> Path:
    """Build one variant from a checkout, and return the archive; its bill of materials is next to it.

    `arguments` are those of the Containerfile, `epoch` is the time of all files; `fresh`: use no earlier layers.
    Raises BuildError.
    """
    project = tomllib.loads((context / "pyproject.toml").read_text())["project"]
    revision = context / "python/dra_agent/revision.txt"
    version: str = project["version"]
    arguments = {
        **{name: value for name, value in arguments.items() if value},
        "VERSION": version,
        "REVISION": revision.read_text().strip() if revision.exists() else "",
        "SOURCE_DATE_EPOCH": str(epoch),
        "CREATED": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    suffix = "" if variant == "plain" else f"-{variant}"
    tag = f"{NAME}:{version}{suffix}"
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    options += ["--layers", "--no-cache"] if fresh else ["--layers"]
    # A local base is in no registry. Others are pulled if they are missing; their digests are in the Containerfile.
    is_local = all(arguments.get(name, "").startswith("localhost/") for name in ("BASE", "RUST"))
    options.append("--pull=never" if is_local else "--pull=false")
    buildah.run(
        "build", "--isolation=chroot", "--format=oci", f"--timestamp={epoch}", f"--target={variant}",
        f"--file={context / 'deploy/Containerfile'}", f"--tag={tag}", *options, str(context),
    )  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    architecture = ARCHITECTURES[platform.machine()]
    archive = output / f"dra-agent-{version}{suffix}-{architecture}.oci.tar"
    with tempfile.TemporaryDirectory(prefix="dra-agent-image-", dir=output) as folder:
        layout = Path(folder) / "layout"
        buildah.run("push", "--quiet", tag, f"oci:{layout}:{version}{suffix}")
        write_archive(layout, archive, tag, epoch)
        archive.with_suffix("").with_suffix(".cdx.json").write_bytes(read_file(layout, SBOM))
    return archive


def source_date(root: Path) -> int:
    """Return the time of the sources, in seconds since 1970: that of the commit, if nothing else is set."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    done = subprocess.run(["git", "-C", root, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else 0


def write_archive(layout: Path, archive: Path, name: str, epoch: int) -> None:
    """Write an OCI layout as a tar whose bytes depend on its content alone; containerd imports it under `name`."""
    index = json.loads((layout / "index.json").read_text())
    for manifest in index["manifests"]:
        manifest.setdefault("annotations", {})["io.containerd.image.name"] = name
    (layout / "index.json").write_text(json.dumps(index, sort_keys=True))
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(path for path in layout.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(str(path.relative_to(layout)))
            member.size, member.mtime, member.mode = path.stat().st_size, epoch, 0o644
            with path.open("rb") as file:
                tar.addfile(member, file)
    shutil.move(partial, archive)


def read_file(layout: Path, name: str) -> bytes:
    """Return the content of a file of the image in an OCI layout."""

    def blob(digest: str) -> bytes:
        return (layout / "blobs" / digest.replace(":", "/")).read_bytes()

    manifest: dict[str, Any] = json.loads(
        blob(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])
    )
    for layer in reversed(manifest["layers"]):
        content = blob(layer["digest"])
        if layer["mediaType"].endswith("gzip"):
            content = gzip.decompress(content)
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            if name in tar.getnames() and (file := tar.extractfile(name)) is not None:
                return file.read()
    raise BuildError(f"the image has no file {name}")


if __name__ == "__main__":
    sys.exit(main())
