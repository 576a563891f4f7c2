"""Reads what processes do on a device, on a separate thread: fdinfo of a GPU that hangs can block its reader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.device_setup.shares.owners import ProcessOwners, UnknownOwnerError
from dra_agent.errors import AgentError
from dra_agent.inventory.model import Device
from dra_agent.telemetry.accounting import TelemetryFailure
from dra_agent.telemetry.device_reads import DeviceReads, LateReadError
from dra_agent.telemetry.process_use import ProcessUse
from dra_agent.telemetry.sources.registry import SourceRegistry

log = logging.getLogger(__name__)

Uses = tuple[ProcessUse, ...]


class ProcessReader:
    """The process sources of one host; used by one thread."""

    def __init__(self, sources: SourceRegistry, threads: DaemonExecutor, timeout_s: float) -> None:
        """`timeout_s`: for one device."""
        self._sources = sources
        self._reads: DeviceReads[Uses | None] = DeviceReads(threads, timeout_s, "processes")

    def read(
        self,
        device: Device,
        owners: ProcessOwners,
        users: Callable[[], Collection[int]],
        failures: list[TelemetryFailure],
    ) -> Uses | None:
        """Return what processes did on a device since the reading before; None if that is not known.

        `users` returns the processes that may use the device for a claim.
        """
        source = self._sources.processes_of(device)
        if source is None:
            return None

        def failed(reason: str) -> None:
            failures.append(TelemetryFailure(source.name, device.name, reason))

        try:
            return self._reads.run(device.name, lambda: source.read(device, owners, users))
        except (UnknownOwnerError, CancelledError):  # or the agent stops
            return None
        except (AgentError, LateReadError, OSError, ValueError) as error:
            failed(str(error))
        except Exception as error:  # a defect of one source must not take the values of others away
            log.exception("telemetry of processes failed", extra={"source": source.name, "device": device.name})
            failed(f"{type(error).__name__}: {error}")
        return None
