"""State that a device setup keeps for each device or claim. It is durable before each change."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dra_agent import atomic_file
from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json

_T = TypeVar("_T")


class StateFiles(Generic[_T]):
    """One file for each name in a directory; the caller holds the lock of the name."""

    def __init__(self, folder: Path, kind: type[_T], *, max_bytes: int = 1 << 20, mode: int = 0o700) -> None:
        """`kind` is the type of the content, `max_bytes` its maximum bytes, `mode` that of the directory."""
        self._folder = folder
        self._kind = kind
        self._max_bytes = max_bytes
        self._mode = mode

    def read(self, name: str) -> _T | None:
        """Return the content of a file; None without one. RetryableError if it cannot be read."""
        path = self.path(name)
        try:
            return decode_json(atomic_file.read(path, self._max_bytes), type=self._kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _disk_error(path, "cannot be read", error) from error
        except msgspec.DecodeError as error:
            self.on_corrupt(path, error)
            return None

    def all(self) -> dict[str, _T]:
        """Return the content of all files by name. RetryableError if one cannot be read."""
        try:
            names = sorted(path.stem for path in self._folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _disk_error(self._folder, "cannot be read", error) from error
        return {name: content for name in names if (content := self.read(name)) is not None}

    def write(self, name: str, content: _T) -> None:
        """Write a file; durable on return. Raises RetryableError if it is too large, or the disk refuses it."""
        path = self.path(name)
        data = msgspec.json.encode(content)
        if len(data) > self._max_bytes:
            message = f"cannot be written: {len(data):,} bytes, and at most {self._max_bytes:,} could be read again"
            raise RetryableError(message, where=str(path), hint="request another device")
        try:
            self._folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
            atomic_file.write(path, data, durable=True)
        except OSError as error:
            raise _disk_error(path, "cannot be written", error) from error

    def delete(self, name: str, *, durable: bool = True) -> None:
        """Remove a file, if it exists. Raises RetryableError if the disk refuses it."""
        path = self.path(name)
        try:
            atomic_file.remove(path, durable=durable)
        except OSError as error:
            raise _disk_error(path, "cannot be removed", error) from error

    def path(self, name: str) -> Path:
        """Return the path of a file: the name of a device is a DNS label; callers validate other names."""
        return self._folder / f"{name}.json"

    def on_corrupt(self, path: Path, error: msgspec.DecodeError) -> None:
        """Quarantine a corrupt file: the agent writes files atomically, so another program wrote it."""
        del error
        atomic_file.quarantine(path)


def _disk_error(path: Path, message: str, error: OSError) -> RetryableError:
    return RetryableError(f"{message}: {error.strerror}", where=str(path), hint="check its disk and its owner")
