"""Marks the wheel as one for a platform: it has the fake NVML library, which `make build` compiles."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = Path("../../../python/dra_simulate/lib/libnvidia-ml.so.1")
PLATFORM = "DRA_AGENT_WHEEL_PLATFORM"
"""The platform tag, if it is not that of this machine: manylinux_2_28_x86_64."""


class PlatformHook(BuildHookInterface[Any]):
    """Sets the tag of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Set it. Raises FileNotFoundError if the library was not built."""
        if not (Path(self.root) / LIBRARY).is_file():
            raise FileNotFoundError(f"{LIBRARY}: not built; run `make build`")
        platform = os.environ.get(PLATFORM) or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
