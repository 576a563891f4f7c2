"""Builds a machine's files under a root, and keeps what has happened to it since in `<root>/simulated.json`.

Building over an existing tree mends it and keeps run-time state: an unplugged device stays unplugged, a written
attribute stays written, faults of the NVML library stay.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.host import Host
from dra_agent.simulate import kfd, nvml, nvml_install, pci, system, tree
from dra_agent.simulate.machine import Machine
from dra_agent.simulate.profiles import load
from dra_agent.simulate.roles import nvidia
from dra_agent.simulate.tree import Tree

_FOLDERS = ("sys", "dev", "proc")


class Simulated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered of a simulated host: which machine it is, and the addresses of what was unplugged."""

    profile: str
    unplugged: tuple[str, ...] = ()


def build(profile: str, root: Path) -> Host:
    """Make `root` a simulated host of that profile; the result is its roots.

    Raises UsageError for an unknown profile, PermanentError where `root` holds something else.
    """
    return build_machine(load(profile), root)


def build_machine(machine: Machine, root: Path) -> Host:
    """The same for a machine that one has described oneself."""
    root = root.absolute()
    host = Host(root / "sys", root / "dev", root / "proc", root / "lib" / nvml.LIBRARY)
    remembered = recall(root)
    fresh = remembered is None
    if remembered is None:
        if root.is_dir() and any(root.iterdir()):
            raise PermanentError(
                "not empty, and not a simulated host", where=str(root), todo="name an empty or a new directory"
            )
        remembered = Simulated(machine.name)
    elif remembered.profile != machine.name:
        raise PermanentError(
            f"holds a simulated {remembered.profile!r}, not {machine.name!r}",
            where=str(root),
            todo=f"remove it (rm -r {root}) or name another directory",
        )
    with nvml.locked(root / "lib"):
        apply(machine, remembered, root, fresh=fresh)
    return host


def apply(machine: Machine, simulated: Simulated, root: Path, *, fresh: bool = False) -> None:
    """Bring tree, NVML state and memory of the host at `root` to what `simulated` says of the machine.

    The memory is written first: a build that is interrupted is finished by the next one.
    """
    tree.replace_file(root / "simulated.json", msgspec.json.format(msgspec.json.encode(simulated), indent=2))
    present = machine.without(simulated.unplugged)
    now, whole = plan(present), plan(machine)
    tree.remove((path for path in whole.entries if path not in now.entries), root)
    tree.write(now, root, fresh=fresh)
    nvml_install.install(machine, present, root / "lib")


def plan(machine: Machine) -> Tree:
    """Everything that lies below the root of such a host."""
    planned = Tree()
    for folder in _FOLDERS:
        planned.directory(folder)
    for part in (system, pci, nvidia, kfd):
        part.plan(machine, planned)
    return planned


def recall(root: Path) -> Simulated | None:
    """What is remembered of the simulated host at `root`; None where there is none."""
    path = root / "simulated.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Simulated)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise PermanentError(
            f"not the memory of a simulated host: {error}", where=str(path), todo="remove the directory and build anew"
        ) from None
