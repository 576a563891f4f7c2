"""Write the generated pages below the repository, or report which of them are stale (`--check`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.grafana import dashboards
from deploy.pages import chart_config, chart_values, commands, configuration_policy, man, settings

ROOT = Path(__file__).resolve().parents[2]

DASHBOARDS = ROOT / "deploy/helm/dra-agent/files/dashboards"


def main() -> int:
    """Write or compare; return 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that differ")
    args = parser.parse_args()
    files = {
        ROOT / "docs/reference/cli.md": commands.page(),
        ROOT / "docs/reference/configuration-keys.md": settings.page(),
        ROOT / "docs/reference/chart-values.md": chart_values.page(),
        ROOT / "deploy/helm/dra-agent/files/config-keys.json": chart_config.text(),
        ROOT / "deploy/helm/dra-agent/files/configuration-policy.yaml": configuration_policy.text(),
        **{DASHBOARDS / name: text for name, text in dashboards.files().items()},
        **{ROOT / "man" / name: text for name, text in man.pages().items()},
    }
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    generated = [*(ROOT / "man").glob("*"), *DASHBOARDS.glob("*")]
    orphans = [path for path in generated if path not in files]
    for path in stale + orphans:
        print(f"{'stale' if args.check else 'write'} {path.relative_to(ROOT)}", file=sys.stderr)
    if args.check:
        return 1 if stale or orphans else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path])
    for path in orphans:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
