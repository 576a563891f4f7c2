"""What a set-up keeps of each device or claim, on disk before anything is done: so a crash leaves nothing unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dra_agent import atomic_file
from dra_agent.errors import RetryableError

_T = TypeVar("_T")


class StateFiles(Generic[_T]):
    """One file for each name in a folder; whoever calls holds the lock of the name."""

    def __init__(self, folder: Path, kind: type[_T], *, most: int = 1 << 20, mode: int = 0o700) -> None:
        """`kind` is the shape of a note, `most` its bytes, `mode` the folder's."""
        self._folder = folder
        self._kind = kind
        self._most = most
        self._mode = mode

    def read(self, name: str) -> _T | None:
        """Give a note; None where there is none. RetryableError where it cannot be read."""
        path = self.path(name)
        try:
            return msgspec.json.decode(atomic_file.read(path, self._most), type=self._kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(path, "cannot be read", error) from error
        except msgspec.DecodeError as error:
            self.on_corrupt(path, error)
            return None

    def all(self) -> dict[str, _T]:
        """Give every note by its name. RetryableError where one cannot be read."""
        try:
            names = sorted(path.stem for path in self._folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _refused(self._folder, "cannot be read", error) from error
        return {name: note for name in names if (note := self.read(name)) is not None}

    def write(self, name: str, note: _T) -> None:
        """Keep a note; durable when it returns."""
        path = self.path(name)
        try:
            self._folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
            atomic_file.write(path, msgspec.json.encode(note), durable=True)
        except OSError as error:
            raise _refused(path, "cannot be written", error) from error

    def delete(self, name: str, *, durable: bool = True) -> None:
        """Remove a note; one that is not there is no error."""
        path = self.path(name)
        try:
            atomic_file.remove(path, durable=durable)
        except OSError as error:
            raise _refused(path, "cannot be removed", error) from error

    def path(self, name: str) -> Path:
        """Say where a note lies: a device's name is a DNS label; other names are checked by who gives them."""
        return self._folder / f"{name}.json"

    def on_corrupt(self, path: Path, error: msgspec.DecodeError) -> None:
        """Set a file aside that says nothing usable: put in place whole and synced, somebody else wrote it."""
        del error
        atomic_file.quarantine(path)


def _refused(path: Path, what: str, error: OSError) -> RetryableError:
    return RetryableError(f"{what}: {error.strerror}", where=str(path), hint="check its disk and its owner")
