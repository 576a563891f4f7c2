"""Types of the Rust extension; rust/native has one file for each section below."""

from typing import Literal

# --- api ---

def validate_object(object: bytes) -> bytes: ...
def quantity_value(text: str) -> int: ...
def quantity_canonical(text: str) -> str: ...
def quantity_compare(left: str, right: str) -> int: ...

# --- topology ---

class TopologyError(ValueError): ...

class Topology:
    @staticmethod
    def scan(sysfs: str) -> Topology: ...
    def to_json(self) -> bytes: ...
    def devices_to_json(self) -> bytes: ...
    def some_devices_to_json(self, addresses: list[str]) -> bytes: ...
    def distance(self, one: str, other: str) -> str | None: ...
    def apply(self, message: bytes) -> bytes: ...
    def rescan(self) -> bytes: ...

class UeventSocket:
    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def receive(self, limit: int = 256) -> tuple[list[bytes], bool]: ...
    def close(self) -> None: ...

# --- cel ---

class CelError(ValueError): ...

class CelExpression:
    def __init__(self, expression: str) -> None: ...
    @staticmethod
    def selector(expression: str) -> CelExpression: ...
    def matches(self, driver: str, device: bytes) -> bool: ...
    def evaluate(self, driver: str, device: bytes) -> bytes: ...
    def cost(self, driver: str, device: bytes) -> int: ...

# --- slices ---

def desired_slices(inventory: bytes) -> bytes: ...
def diff_slices(desired: bytes, published: bytes) -> bytes: ...

# --- ledger ---

class LedgerError(ValueError):
    """Base class of the errors of a ledger; the message contains the fix."""

class LedgerConflictError(LedgerError):
    """Another claim holds the device; the message names it."""

class LedgerIoError(LedgerError):
    """A file operation failed, or another process holds the lease. Nothing changed; the same call may succeed later."""

class LedgerUsageError(LedgerError):
    """The call is invalid: no such claim, not an entry, or another process or a newer version uses the ledger."""

class Ledger:
    """The prepared claims. Entries are JSON objects of docs/explanation/ledger.md; every method is thread-safe."""

    @staticmethod
    def open(state_dir: str, boot_id: str) -> Ledger: ...
    @staticmethod
    def open_shared(state_dir: str, boot_id: str, label: str, timeout: float) -> Ledger:
        """Other processes may open it in this way too. It can be changed only while the lease is held."""

    def acquire_lease(self, timeout: float) -> Literal["unchanged", "released", "abandoned"]:
        """Wait `timeout` seconds for the lease and read what other processes recorded; return what they did."""

    def release_lease(self) -> None: ...
    @property
    def is_lease_contended(self) -> bool:
        """Whether another process waits for the lease."""

    def start(self, entry: bytes, durable: bool = True) -> None:
        """Hold the entry's devices; with durable False, the next record of any claim makes it durable."""

    def complete(self, uid: str, payload: bytes | None = None) -> None:
        """Durable when it returns: the claim may be reported as prepared."""

    def release(self, uid: str) -> bool:
        """Durable when it returns; False if the claim held nothing."""

    def get(self, uid: str) -> bytes | None: ...
    def entries(self) -> bytes: ...
    @property
    def report(self) -> bytes:
        """What was found at opening, and `not_writable`: why the ledger cannot be written, or null."""

    @property
    def compaction_due(self) -> bool: ...
    def compact(self) -> None: ...
    def close(self) -> None: ...

# --- signals ---

class SignalListener:
    """Receives signals on a thread below Python, from its creation to the end of the process."""

    def __init__(self, stop: list[int], other: list[int]) -> None:
        """Until `set_grace`, a `stop` signal ends the process at once, with status 0. OSError where it fails."""

    def set_grace(self, seconds: float | None) -> None:
        """Leave the process this long to end after a stop signal; None lifts the limit, also for an earlier signal."""

    def fileno(self) -> int:
        """Return a non-blocking socket from which each signal is read as one byte, its number."""

# --- allocator ---

def allocate(query: bytes) -> bytes: ...
def explain(query: bytes) -> bytes: ...
