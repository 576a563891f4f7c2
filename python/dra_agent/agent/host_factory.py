"""The host that a configuration names: this machine, other roots, or a simulated machine that is built for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dra_agent.agent.config import Config
from dra_agent.errors import RetryableError
from dra_agent.host import Host

SIMULATED = "simulated"
"""Its directory in the state directory: an agent keeps its simulated host, so that it can be changed meanwhile."""


def agent_host(config: Config) -> Host:
    """Give the host that the agent runs on; a simulated one lives in the state directory."""
    if config.simulate is None:
        return Host(sysfs=config.sysfs_root, dev=config.dev_root, net=config.net_root, state=config.state_dir)
    from dra_agent import simulate

    root = config.state_dir / SIMULATED / config.simulate
    try:
        return replace(simulate.build(config.simulate, root), state=config.state_dir)
    except OSError as error:
        raise RetryableError(
            f"the simulated host cannot be built: {error.strerror}",
            where=str(error.filename or root),
            hint="make room there, or choose another directory with --state-dir",
        ) from error


def is_simulated(host: Host) -> bool:
    """Whether a host is a simulated one, by what `simulate.builder` leaves beside its /sys."""
    return (host.sysfs.parent / "simulated.json").is_file()


@contextmanager
def command_host(config: Config) -> Iterator[Host]:
    """Give the host that a command looks at: the agent's own simulated one if there is one, else one for the moment."""
    if config.simulate is None or (config.state_dir / SIMULATED / config.simulate / "sys").is_dir():
        yield agent_host(config)
        return
    from tempfile import TemporaryDirectory

    from dra_agent import simulate

    with TemporaryDirectory(prefix="dra-agent-") as directory:
        yield simulate.build(config.simulate, Path(directory))
