"""The other distributions of this repository, which the agent loads by name where they are installed.

The agent imports neither of them and runs without them. Their metadata is not read: the image and `make install` have
none, and it would cost time at start-up.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from dra_agent import __version__
from dra_agent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dra_agent.device_setup.sysfs_writer import SysfsWriter
    from dra_agent.host import Host


class Distribution(NamedTuple):
    """A distribution: its name, its Python package, and how to install it."""

    name: str
    package: str
    hint: str

    @property
    def is_installed(self) -> bool:
        """Whether its package can be imported; a folder that only has build outputs is not a package."""
        from importlib.util import find_spec

        spec = find_spec(self.package)
        return spec is not None and spec.origin is not None


CLUSTER = Distribution("dra-agent-cluster", "dra_cluster", "pip install 'dra-agent[cluster]'")
SIMULATE = Distribution(
    "dra-agent-simulate",
    "dra_simulate",
    "pip install 'dra-agent[simulate]', or use the debug variant of the image",
)


class Simulation(Protocol):
    """What `dra_simulate` provides for an agent on a simulated host, or on a recording of one."""

    def profiles(self) -> Sequence[str]:
        """Return the names of the machines that can be simulated."""

    def folder_name(self, name: str) -> str:
        """Return the name of the folder for the host of a profile or a recording."""

    def build(self, profile: str, root: Path) -> Host:
        """Make `root` a host of a profile or a recording; an existing one is repaired."""

    def driver_root(self, root: Path, path: Path) -> Path:
        """Return where the host at `root` has NVIDIA's driver root `path`; the first call installs the driver."""

    def sysfs_writer(self, root: Path) -> SysfsWriter:
        """Return what reacts to writes to /sys of the host at `root`."""


def load(distribution: Distribution, module: str, user: str) -> ModuleType:
    """Import a module of a distribution, by its name in the package ("": the package), for a command or a flag.

    Raises:
        UsageError: The distribution is not installed, or it is of another version of the agent.
    """
    if not distribution.is_installed:
        raise UsageError(f"needs the package {distribution.name}", where=user, hint=distribution.hint)
    package = import_module(distribution.package)
    if package.__version__ != __version__:
        # pip installs a new agent next to the package of the old one, with only a warning.
        raise UsageError(
            f"{distribution.name} {package.__version__} is not for dra-agent {__version__}",
            where=user,
            hint=distribution.hint,
        )
    return import_module(f"{distribution.package}.{module}") if module else package


def simulation(user: str = "--simulate") -> Simulation:
    """Return what provides simulated hosts. Raises UsageError if it is not installed."""
    return cast(Simulation, load(SIMULATE, "", user))
