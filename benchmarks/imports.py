"""Memory that the imports of the agent take, by package: private memory, and pages of files.

    imports.py          # the agent in Kubernetes mode
    imports.py worker   # the process of NVML

One process imports the modules and reads its memory before and after each. A module's memory excludes that of the
modules that it imports. Valid on a busy machine, but byte code has to be compiled: run it twice. Pages of files are
shared with other processes that map them. The script imports little, because that would be missing in the result.
"""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

AGENT = ("dra_agent.cli.main", "dra_agent.cli.run", "dra_agent.agent.agent", "dra_agent.agent.kubernetes_mode")
SHOWN_KIB = 64
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
bootstrap: Any = importlib.import_module("importlib._bootstrap")
"""It has the one function that every import of a new module calls, but not in its public part."""


def main() -> None:
    before, by_package = resident(), record()
    if sys.argv[1:] == ["worker"]:
        importlib.import_module("dra_agent.nvml.worker")._pynvml()
    elif not sys.argv[1:]:
        for name in AGENT:
            importlib.import_module(name)
    else:
        sys.exit(__doc__)
    print(f"{'KiB':32}{'private':>10}{'files':>10}")
    show("interpreter", before)
    for package, sizes in sorted(by_package.items(), key=lambda pair: -sum(pair[1])):
        if sum(sizes) >= SHOWN_KIB:
            show(package, (sizes[0], sizes[1]))
    show("all", resident())


def show(title: str, sizes: tuple[int, int]) -> None:
    print(f"{title:32}{sizes[0]:>10}{sizes[1]:>10}")


def resident() -> tuple[int, int]:
    """Return KiB of private memory and of pages of files; see statm in proc(5)."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - pathlib is not imported yet
        _, pages, shared, *_ = map(int, statm.read().split())
    return (pages - shared) * PAGE_KIB, shared * PAGE_KIB


def record() -> dict[str, list[int]]:
    """Record the memory of each following import; returns what is recorded, by package."""
    load = bootstrap._load_unlocked
    by_package: dict[str, list[int]] = {}
    within: list[list[int]] = []
    """For each running import, the memory of the imports within it."""

    def recorded(spec: Any) -> ModuleType:
        before = resident()
        within.append([0, 0])
        try:
            module: ModuleType = load(spec)
        finally:
            others = within.pop()
            own = by_package.setdefault(package_of(spec.name), [0, 0])
            for kind, (now, earlier) in enumerate(zip(resident(), before, strict=True)):
                own[kind] += now - earlier - others[kind]
                if within:
                    within[-1][kind] += now - earlier
        return module

    bootstrap._load_unlocked = recorded
    return by_package


def package_of(module: str) -> str:
    """Return the top package, for modules of the agent that below it."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "dra_agent" else parts[0]


if __name__ == "__main__":
    main()
