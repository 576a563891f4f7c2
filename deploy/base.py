"""`make manifests`: generates the kustomize base from the chart's default values.

First, it copies examples/classes into the chart, because Helm reads no files outside a chart, and some checkouts and
archives do not preserve links. The kustomization and the namespace of the base are maintained manually. All other files
are rendered from the chart, without the two labels that mark objects as managed by Helm.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

CHART = Path(__file__).with_name("helm") / "dra-agent"
CLASSES = Path(__file__).resolve().parents[1] / "examples/classes"
BASE = Path(__file__).with_name("kustomize") / "base"
NAMESPACE = "dra-agent"
KUBE_VERSION = "1.37.0"
"""The base has the objects for this version of Kubernetes."""
_OF_HELM = re.compile(r"^ +(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n", re.MULTILINE)
_SOURCE = re.compile(r"^# Source: dra-agent/templates/(\S+)\n", re.MULTILINE)


def main() -> int:
    """Write the files; return 1 if helm is missing or rejects the chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", default=shutil.which("helm"), help="path of helm (default: from PATH)")
    args = parser.parse_args()
    if args.helm is None:
        print("manifests: helm is not in PATH; set its path with HELM=", file=sys.stderr)
        return 1
    copy_classes()
    try:
        files = render(Path(args.helm))
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr, end="")
        return 1
    for name, text in files.items():
        (BASE / name).write_text(text)
        print(f"wrote {(BASE / name).relative_to(CHART.parents[2])}")
    return 0


def copy_classes() -> None:
    """Copy the examples into the chart, and remove classes without an example."""
    folder = CHART / "classes"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for example in sorted(CLASSES.glob("*.yaml")):
        shutil.copyfile(example, folder / example.name)


def render(helm: Path) -> dict[str, str]:
    """Return the text of each file of the base, by name; a template with several objects is one file."""
    command = [str(helm), "template", "dra-agent", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    files: dict[str, str] = {}
    for document in re.split(r"^---\n", text, flags=re.MULTILINE):
        source = _SOURCE.match(document)
        if source is not None:
            body = _OF_HELM.sub("", document[source.end() :]).strip() + "\n"
            files[source[1]] = f"{files[source[1]]}---\n{body}" if source[1] in files else body
    return files


if __name__ == "__main__":
    sys.exit(main())
