"""Writes a CycloneDX 1.6 bill of materials: the Python packages, crates and base packages of an installation.

Two runs on the same content write the same bytes. Reference: https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Component = dict[str, Any]
SHIPPED = ("dra-native", "dra-agent-hook")
"""The crates of both variants."""
ADDED = ("dra-nvml-fake",)
"""The crates of the debug variant alone."""
DPKG_INFO = Path("var/lib/dpkg/status.d")
"""Where scanners find the packages of an image that has no package manager, as in distroless images."""


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", type=Path, required=True, help="directory with the agent's Python libraries")
    parser.add_argument("--root", type=Path, help="root of an image whose files of the base are listed")
    parser.add_argument("--added", type=Path, help="what the debug variant adds to --root: files, and the fake NVML")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    added = [] if args.added is None else [args.added]
    components = [*python_packages(args.libraries), *crates([*SHIPPED, *(ADDED if added else ())])]
    if args.root is not None:
        components += [python_runtime(), *base_packages(args.root, *added)]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(bill(components), indent=1, sort_keys=True) + "\n")
    return 0


def bill(components: list[Component]) -> dict[str, Any]:
    """Return the document; its serial number is derived from the components."""
    ordered = sorted(components, key=lambda item: item["purl"])
    content = hashlib.sha256(json.dumps(ordered, sort_keys=True).encode()).hexdigest()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    created = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    revision = ROOT / "python/dra_agent/revision.txt"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": created.isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "application",
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
                "properties": [
                    {"name": "revision", "value": revision.read_text().strip() if revision.exists() else "unknown"}
                ],
            },
        },
        "components": ordered,
    }


def python_packages(libraries: Path) -> Iterator[Component]:
    """Yield the installed distributions of a directory."""
    for path in sorted(libraries.glob("*.dist-info")):
        found: Distribution = PathDistribution(path)
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
        fields = found.metadata.json
        text = str(fields.get("license_expression") or fields.get("license") or "")
        yield component("library", name, found.version, f"pkg:pypi/{name}@{found.version}", text)


def crates(packages: Sequence[str]) -> Iterator[Component]:
    """Yield the crates that the named crates of the workspace are linked with, without tools of builds and tests."""
    target = f"{platform.machine()}-unknown-linux-gnu"
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--all-features", "--filter-platform", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"sbom: cargo metadata: {done.stderr.strip()}")
    metadata = json.loads(done.stdout)
    described = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(item["name"], item["version"]): item.get("checksum") for item in locked}
    reached: set[str] = set()
    waiting = [key for key, package in described.items() if package["name"] in packages]
    while waiting:
        key = waiting.pop()
        if key in reached:
            continue
        reached.add(key)
        waiting += [
            dependency["pkg"]
            for dependency in nodes[key]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
    for key in sorted(reached):
        name, version = described[key]["name"], described[key]["version"]
        found = component("library", name, version, f"pkg:cargo/{name}@{version}", described[key].get("license") or "")
        if checksum := checksums.get((name, version)):
            found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        yield found


def python_runtime() -> Component:
    """Return the interpreter that runs this script, which is that of the image."""
    version = platform.python_version()
    return component("platform", "cpython", version, f"pkg:generic/cpython@{version}", "PSF-2.0")


def base_packages(*roots: Path) -> Iterator[Component]:
    """Yield the Debian packages of which files are in an image, and copy their licenses and records into it.

    `roots` are its layers; the records of a package are in the first one that has them, otherwise in the last one.
    """
    names = {
        f"/{path.relative_to(root)}"
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    # The database has the paths from before /usr was merged for some packages.
    names |= {name.removeprefix("/usr") for name in names if re.match(r"/usr/(s?bin|lib)", name)}
    files = sorted(name for name in names if Path(name).exists())
    output = subprocess.run(["dpkg-query", "--search", *files], capture_output=True, text=True, check=False).stdout
    packages = {line.partition(": ")[0] for line in output.splitlines() if not line.startswith("diversion ")}
    for package in sorted({name for names in packages for name in names.split(", ")}):
        form = "${Package}\t${Version}\t${Architecture}\t${source:Package}\n"
        text = subprocess.run(
            ["dpkg-query", "--show", f"--showformat={form}", package], capture_output=True, text=True, check=True
        ).stdout
        name, version, architecture, source = text.strip().split("\t")
        status = subprocess.run(["dpkg-query", "--status", package], capture_output=True, text=True, check=True).stdout
        root = next((layer for layer in roots if (layer / DPKG_INFO / name).exists()), roots[-1])
        (root / DPKG_INFO).mkdir(parents=True, exist_ok=True)
        (root / DPKG_INFO / name).write_text(status)
        copyright_file = Path("/usr/share/doc") / name / "copyright"
        if copyright_file.exists():
            target = root / copyright_file.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(copyright_file.read_bytes())
        yield {
            **component("library", name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}", ""),
            "properties": [{"name": "source", "value": source}],
        }


def component(kind: str, name: str, version: str, purl: str, license_text: str) -> Component:
    """Return one entry; a license that is a whole text is left to the package."""
    found: Component = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if license_text and len(license_text) < 100 and "\n" not in license_text:
        simple = re.fullmatch(r"[A-Za-z0-9.+-]+", license_text) is not None
        # Only expressions of SPDX are allowed there; older metadata has names of any form.
        spdx = re.fullmatch(r"[A-Za-z0-9.+()-]+( (AND|OR|WITH) [A-Za-z0-9.+()-]+)*", license_text.replace("/", " OR "))
        if spdx and not simple:
            found["licenses"] = [{"expression": license_text.replace("/", " OR ")}]
        else:
            found["licenses"] = [{"license": {"name": license_text}}]
    return found


if __name__ == "__main__":
    sys.exit(main())
