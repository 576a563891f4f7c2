"""Device setup of the notice file: a directory for the claim, mounted into its containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from dra_agent.cdi.model import ContainerEdits, Mount
from dra_agent.cdi.names import check_uid
from dra_agent.deadline import Deadline
from dra_agent.device_setup.notice.directory import NoticeDirectory
from dra_agent.inventory.model import Device
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome

CONTAINER_DIR = "/run/dra-agent/notice"
"""In containers: a directory for each claim, so that a container can have several."""
VARIABLE = "DRA_AGENT_NOTICE_DIR"
_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "noexec", "bind")
REMOVE_TIMEOUT_S = 5.0
"""Minimum timeout for removing a directory, even if the caller's deadline is earlier."""


class ReclaimNoticeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the notice file: it has no settings."""


class NoticeSetup:
    """Gives the containers of a claim the notice file; thread-safe.

    Each device of the claim mounts the directory, because a container may use any of them. Runtimes replace a mount
    with the same container path (container-device-interface pkg/cdi/container-edits.go, ContainerEdits.Apply).
    """

    kind: Kind = (API_VERSION, "ReclaimNoticeConfig")
    parameters = ReclaimNoticeConfig

    def __init__(self, directory: NoticeDirectory) -> None:
        self._directory = directory

    def default(self, device: Device) -> None:
        """Give containers no notice file without parameters."""

    def check(self, device: Device, parameters: ReclaimNoticeConfig) -> None:
        """Accept every device: the notice is about the host."""

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: Any, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Create the directory of the claim with the current notice, or repair it."""
        self._directory.create(uid, deadline)
        edits = container_edits(self._directory, uid)
        return SetupOutcome(None, {item.key: edits for item in devices})

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Remove the directory. The CDI spec that mounts it is removed already."""
        self._directory.remove(uid, deadline.at_least(REMOVE_TIMEOUT_S))

    def roll_back(self, uid: str, keys: Sequence[str], parameters: Any, deadline: Deadline) -> None:
        """Do the same."""
        self.tear_down(uid, keys, None, deadline)

    def prune(self, is_held: Callable[[str], bool]) -> None:
        """Remove directories of claims that hold nothing."""
        for uid in self._directory.uids():
            self._directory.remove(uid, Deadline.of(REMOVE_TIMEOUT_S), unless=partial(is_held, uid))


def container_edits(directory: NoticeDirectory, uid: str) -> ContainerEdits:
    """Return the mount and the variable. With several claims, the variable has the path of one: all files are equal."""
    path = f"{CONTAINER_DIR}/{check_uid(uid)}"
    mount = Mount(str(directory.folder(uid)), path, options=_MOUNT_OPTIONS)
    return ContainerEdits(env=(f"{VARIABLE}={path}",), mounts=(mount,))
