"""The minor version of kube-scheduler whose rules an answer uses: that of the API server, or of a flag."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from dra_agent.cluster import DEFAULT_MINOR
from dra_agent.errors import PermanentError, RetryableError, UsageError
from dra_agent.kube_client import ApiClient

OLDEST_MINOR = 34
"""The first version with resource.k8s.io/v1."""
_TIMEOUT_S = 5.0
_MAX_BYTES = 64 << 10
_FLAG = re.compile(r"v?1\.(\d{1,3})(?:[.+-].*)?")


class SchedulerVersion(NamedTuple):
    """A minor version of Kubernetes 1."""

    minor: int = DEFAULT_MINOR
    is_assumed: bool = True
    """Neither the API server nor the user named it."""

    def __str__(self) -> str:
        """Return it as releases are named."""
        return f"1.{self.minor}"

    @property
    def scheduler(self) -> str:
        """The kube-scheduler of this version, in a sentence."""
        return f"kube-scheduler {self}" + (" (assumed; --scheduler-version names another)" if self.is_assumed else "")


ASSUMED = SchedulerVersion()


class _Version(msgspec.Struct):
    """What /version returns (k8s.io/apimachinery/pkg/version); some distributions append a plus sign to the minor."""

    major: str
    minor: str


def parse_version(text: str) -> SchedulerVersion:
    """Read a version such as 1.37 or v1.37.2; raises UsageError."""
    match = _FLAG.fullmatch(text)
    if match is None or int(match[1]) < OLDEST_MINOR:
        raise UsageError(
            f"--scheduler-version {text} is not a version from 1.{OLDEST_MINOR} on", hint="give one such as 1.37"
        )
    return SchedulerVersion(int(match[1]), is_assumed=False)


async def read_version(api: ApiClient, notes: list[str]) -> SchedulerVersion:
    """Ask the API server; where it does not respond with a version, one is assumed, and a note says so."""
    so = f"the rules of kube-scheduler {ASSUMED} are assumed"
    try:
        text = await api.get_text("/version", timeout=_TIMEOUT_S, max_bytes=_MAX_BYTES)
        found = msgspec.json.decode(text, type=_Version)  # noqa: TID251 - not an object of the API
        minor = re.match(r"\d{1,3}", found.minor)
        if found.major == "1" and minor is not None:
            return SchedulerVersion(int(minor[0]), is_assumed=False)
        notes.append(f"the API server has version {found.major}.{found.minor}; {so}")
    except (PermanentError, RetryableError) as error:
        notes.append(f"cannot get the version of the API server: {error.message}; {so}")
    except msgspec.MsgspecError as error:
        notes.append(f"the API server returns no version: {error}; {so}")
    return ASSUMED
