"""What a release was built from: checksums, and an in-toto statement with a SLSA predicate.

The statement describes the build, and proves nothing about who ran it. A signature of the checksums covers it.
References: https://in-toto.io/Statement/v1, https://slsa.dev/spec/v1.0/provenance
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from deploy.image import packages

SUMS = "SHA256SUMS"
LOCKS = (
    "Cargo.lock",
    *(f"deploy/image/{name}" for name in sorted(packages.LOCKS.values())),
    "requirements.lock",
    "rust-toolchain.toml",
)


def write(output: Path, sources: Path, *, version: str, revision: str, bases: dict[str, str]) -> None:
    """Write the statement and the checksums of all files of a directory."""
    statement = describe(output, sources, version=version, revision=revision, bases=bases)
    target = output / f"dra-agent-{version}.provenance.json"
    target.write_text(json.dumps(statement, indent=1, sort_keys=True) + "\n")
    lines = [f"{digest}  {name}\n" for name, digest in digests(output).items()]
    (output / SUMS).write_text("".join(lines))


def describe(output: Path, sources: Path, *, version: str, revision: str, bases: dict[str, str]) -> dict[str, Any]:
    """Return the statement about the files of a directory; `bases` are image names by their argument."""
    materials: list[dict[str, Any]] = [{"name": "sources", "digest": {"gitCommit": revision}}]
    materials += [{"name": name, "digest": {"sha256": digest(sources / name)}} for name in LOCKS]
    for name, image in sorted(bases.items()):
        found = re.search(r"@?sha256:([0-9a-f]{64})$", image)
        entry: dict[str, Any] = {"name": f"image {name}", "uri": image}
        materials.append({**entry, "digest": {"sha256": found[1]}} if found else entry)
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://slsa.dev/provenance/v1",
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in digests(output).items()],
        "predicate": {
            "buildDefinition": {
                "buildType": "https://dra-agent.internal/release/v1",
                "externalParameters": {"command": f"make release VERSION={version}", "version": version},
                "internalParameters": {},
                "resolvedDependencies": materials,
            },
            # Neither times nor the machine: two builds of one commit have the same statement.
            "runDetails": {"builder": {"id": "https://dra-agent.internal/release/unsigned-local-build"}},
        },
    }


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a directory by name, without the list of checksums."""
    return {path.name: digest(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != SUMS}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
