"""The lifetime of one agent: creates the parts, runs them, and closes them.

It has no logic of claims or devices. Stopping releases nothing: claims stay prepared for their containers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent import __version__, garbage_collection
from dra_agent.agent import host_ownership
from dra_agent.agent.about import describe
from dra_agent.agent.closing import ClosingStack
from dra_agent.agent.config import SIMULATED_CDI, Config
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.file_watch import FileWatch
from dra_agent.agent.housekeeping import Housekeeping
from dra_agent.agent.leadership import Leadership
from dra_agent.agent.liveness import (
    BEAT_INTERVAL_S,
    READY,
    STOPPING,
    WATCHDOG,
    LivenessMonitor,
    MonitoredThread,
    Notifier,
)
from dra_agent.agent.mode import Mode
from dra_agent.agent.observability import Observability
from dra_agent.agent.parts import Parts
from dra_agent.agent.readiness import Readiness
from dra_agent.agent.refresh_loop import RefreshLoop
from dra_agent.agent.reload import Reload
from dra_agent.agent.rolling_update import InstanceRegistry, StateLock, remove_leftovers
from dra_agent.agent.setup_registry import agent_host
from dra_agent.agent.shared_ledger import SharedLedger
from dra_agent.agent.signals import Signals, run_unless
from dra_agent.agent.tree_watch import TreeWatch, unannounced_trees
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import RetryableError
from dra_agent.health.monitor import Monitor
from dra_agent.health.state_file import HealthStateFile
from dra_agent.host import Host
from dra_agent.inventory.passthrough import VfioBindingStore
from dra_agent.malloc import limit_free_memory
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.locks import KeyedLocks
from dra_agent.prepare.ownership import Ownership
from dra_agent.prepare.setup import DeviceSetup
from dra_agent.reclaim.runtime import ReclaimRuntime
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.signal import SignalSource
from dra_agent.reclaim.signals.detection import select_sources
from dra_agent.supervisor import supervisor

if TYPE_CHECKING:
    from dra_agent.device_setup.notice.directory import NoticeDirectory

log = logging.getLogger(__name__)

DRAIN_CHECK_INTERVAL_S = 1.0
"""Maximum seconds between two checks for claims that are still prepared. Releases are events; but another agent of a
rolling update may become the leader, and the service manager has to be asked for more time."""
EXTEND_TIMEOUT_S = 5.0
"""Seconds by which each request extends the stop timeout of the service manager."""
STOP_LIMIT_S = 45.0
"""Maximum seconds for which a notice without a deadline delays a stop: the default grace period of pods is 30."""
CDI_REPLACED_GRACE_S = 30.0
"""Seconds after the host replaced the CDI directory until /healthz fails: a restart mounts the new one."""
MAX_WORKER_THREADS = 32
"""Threads of the event loop's executor: small reads and writes, and hooks of containers that start."""
KEPT_WORKER_THREADS = 2
"""Those that exist from the start: what a reclaim notice needs must not wait for the system to have room for one."""

THREAD_SWITCH_INTERVAL_S = 0.0005
"""Seconds that a thread may compute while another one waits to. A call of the kubelet waits for so long after each of
its system calls, while a rescan or a sample computes; by default ten times as long."""


class Agent:
    """One agent from start to stop."""

    def __init__(self, config: Config, signals: Signals, reload: Reload, file: Path | None = None) -> None:
        """`reload` starts on SIGHUP, and when `file` changes."""
        self._config = config
        self._signals = signals
        self._reload = reload
        self._file = file
        self._unapplied: Config | None = None
        """A configuration that was loaded before the devices were known."""
        self._notifier = Notifier()
        self._liveness = LivenessMonitor()
        self._stop = asyncio.Event()
        self._second_stop = False
        self._drain_changed = asyncio.Event()
        """Set when a claim was released, a notice changed, or another signal came."""
        self._stopped_at: float | None = None
        """When the first stop signal came, by time.monotonic()."""
        self._stop_is_delayed = False
        self._parts = Parts()
        self._readiness = Readiness(self._parts, self._liveness)
        self._is_newest: Callable[[], bool] = lambda: True
        """True for the newest running agent, which does the local work."""
        self._leadership = Leadership(None)
        """Which agent writes to the API server."""
        self._closing = ClosingStack(AsyncExitStack())
        self._observability = Observability(config, self._parts, reload, self._liveness, self._readiness, self._closing)
        self._start_hung = False
        self._started_at = time.monotonic()
        self._thread: MonitoredThread | None = None
        """The thread of the hardware, once devices are served."""

    async def run(self) -> None:
        """Start, report readiness, and run until SIGTERM or SIGINT; raises AgentError if it cannot start.

        While a notice is active and claims are not released, it continues until they are; a second signal ends it.
        """
        limit_free_memory()
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
        async with self._closing.stack as stack:
            stack.enter_context(self._signals.attach(self._on_stop, self._reload))
            loop = asyncio.get_running_loop()
            stack.enter_context(supervisor().attached(loop))
            self._reload.follow(
                lambda config: self._apply_from_thread(loop, config), lambda: self._notify_from_thread(loop)
            )
            if self._file is not None:
                watch = FileWatch(self._file, self._reload.file_changed)
                watch.start()
                stack.callback(watch.stop)
            stack.callback(self._notifier.send, "STATUS=stopped")
            # A start may take longer than a loop may be still.
            heartbeat = supervisor().loop("heartbeat", self._send_heartbeats)
            stack.callback(heartbeat.cancel)
            started = await run_unless(
                self._stop, self._has_claims_to_release, self._start(stack), self._wait_drain_change
            )
            heartbeat.cancel()
            if started:
                await self._run_until_stopped()
            else:
                log.warning("stopped during the start")
                self._start_hung = True
            self._readiness.not_ready = "stopping"
            self._notifier.send(STOPPING)
            log.info("stopping; prepared claims stay prepared")
        log.info("stopped")

    @property
    def _shared_as(self) -> str | None:
        """By which name this agent shares its state directory with others; None: it is alone there."""
        config = self._config
        return config.pod_uid if config.pod_uid and not config.standalone else None

    @property
    def hung_calls(self) -> list[str]:
        """Calls that are pending on worker threads, such as those of a library that hangs."""
        mode = self._parts.mode
        hung = ["the start"] if self._start_hung else []
        hung += self._closing.left_behind + self._liveness.busy()
        return hung + (mode.hung_calls if mode is not None else [])

    async def _start(self, stack: AsyncExitStack) -> None:
        config = self._config
        shared_as = self._shared_as
        # Agents of a rolling update live side by side for a while; all others are alone on their state directory.
        lock = StateLock(config.state_dir, shared=shared_as is not None)
        stack.callback(lock.close)
        ownership = host_ownership.join(config, stack.callback)
        if config.simulate is not None and config.cdi_dir == config.state_dir / SIMULATED_CDI:
            log.info(
                "the devices are simulated: CDI specs are kept away from container runtimes",
                extra={"cdi_dir": str(config.cdi_dir)},
            )
        instances = None
        if shared_as is not None:
            instances = InstanceRegistry(config.state_dir, shared_as)
            stack.callback(instances.close)
            instances.start()
            self._is_newest = instances.is_newest
            self._leadership = Leadership(instances)
        # Never waited for: a library that hangs must not keep the agent from stopping.
        asyncio.get_running_loop().set_default_executor(
            DaemonExecutor(MAX_WORKER_THREADS, "worker", kept=KEPT_WORKER_THREADS)
        )
        thread = MonitoredThread("hardware", self._liveness)
        stack.callback(thread.shutdown)
        self._observability.serve()
        mode = self._choose(stack, thread)
        await mode.open()
        host = await thread.run("building the simulated host", 60.0, lambda: agent_host(config))
        # Before the scan of devices, which may take long: a notice does not wait for it.
        reclaim = self._parts.reclaim = ReclaimRuntime(
            config.reclaim,
            _signal_sources(config.reclaim, host, mode),
            config.state_dir,
            host.boot_id(),
            notice_dir=config.notice_dir,
            keeps_notice=config.standalone,
            is_newest=self._is_newest,
            about=lambda: describe(self._reload.effective, self._reload.status),
            metrics=self._observability.exposition,
        )
        mode.attach_reclaim(reclaim.service)
        stack.push_async_callback(reclaim.stop)
        await reclaim.start()
        await thread.run("removing temporary files", 60.0, lambda: remove_leftovers(config.state_dir))
        ledger = self._parts.ledger = await thread.run(
            "opening the ledger",
            60.0,
            lambda: JournalLedger(config.state_dir, host.boot_id(), shared_as=shared_as),
        )
        stack.callback(ledger.close)
        if instances is not None:
            shared_ledger = SharedLedger(ledger, instances)
            stack.callback(shared_ledger.stop)
            shared_ledger.start()
        if rebooted := len(ledger.report.earlier_boot):
            log.info(
                "the host was restarted: claims are prepared again on the same devices", extra={"claims": rebooted}
            )
        for problem in ledger.report.problems():
            log.error("the ledger was damaged", extra={"problem": problem})
        if ledger.report.not_writable:
            log.error("nothing can be recorded in the ledger", extra={"reason": ledger.report.not_writable})
        device_state = self._parts.device_state = await thread.run(
            "reading the host",
            120.0,
            lambda: DeviceState(
                host,
                config.inventory,
                node=config.node,
                driver=config.driver_name,
                monitor=self._monitor(host),
                bindings=VfioBindingStore(config.state_dir),
                ledger=ledger,
                computes_slices=config.standalone,
            ),
        )
        self._closing.add("the hardware", device_state.close)
        setups = self._setups(device_state, reclaim.notices)
        preparer = self._preparer(ledger, device_state, setups, ownership)
        for problem in await thread.run(
            "comparing owners of devices", 60.0, lambda: ownership.reconcile(ledger, device_state.lookup)
        ):
            log.error("another agent of this host has a device of a prepared claim", extra={"problem": problem})
        await self._supervise_daemons(stack, thread, device_state, mode, setups)
        await self._serve_hooks(stack, setups)
        await mode.serve(preparer, device_state, ledger)
        refresh_loop = RefreshLoop(
            device_state,
            thread=thread,
            changed=mode.devices_changed,
            follows_kernel=str(host.sysfs) == "/sys",
            watch=TreeWatch(unannounced_trees(host)),
        )
        await refresh_loop.start()
        stack.push_async_callback(refresh_loop.stop)
        await self._observability.sample(device_state, ledger, self._is_newest)
        self._thread = thread
        if self._unapplied is not None:
            await self._apply(self._unapplied)
        self._ready(sum(entry.state == "completed" for entry in ledger.entries()))
        # Claims of earlier agents are repaired after the kubelet is served: a hung repair does not block new claims.
        housekeeping = Housekeeping(ledger, preparer, self._liveness, is_newest=self._is_newest)
        stack.callback(housekeeping.stop)
        housekeeping.start()

    def _monitor(self, host: Host) -> Monitor:
        config = self._config
        return Monitor(config.health, config.driver_name, HealthStateFile(config.state_dir, host.boot_id()))

    def _setups(self, device_state: DeviceState, notices: NoticeDirectory) -> tuple[DeviceSetup, ...]:
        from dra_agent.agent.setup_registry import vendor_setups

        return vendor_setups(self._config, device_state.host, device_state.mode_changes, notices)

    def _apply_from_thread(self, loop: asyncio.AbstractEventLoop, config: Config) -> None:
        """Apply it on the event loop, and wait; raises AgentError if nothing was applied."""
        applying = self._apply(config)
        try:
            asyncio.run_coroutine_threadsafe(applying, loop).result()
        except (RuntimeError, CancelledError) as error:
            applying.close()
            raise RetryableError("the agent is stopping") from error

    async def _apply(self, config: Config) -> None:
        """Apply the reloadable keys; claims that are being prepared keep their devices."""
        device_state, mode, reclaim = self._parts.device_state, self._parts.mode, self._parts.reclaim
        if device_state is None or self._thread is None or mode is None or reclaim is None:
            self._unapplied = config
            return
        # Before anything is applied, because an invalid configuration of a source is refused.
        sources = _signal_sources(config.reclaim, device_state.host, mode)
        if not self._readiness.not_ready:
            # sd_notify(3): the service is shown as reloading until READY=1.
            self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            change = await self._thread.run(
                "applying the configuration",
                120.0,
                lambda: device_state.configure(config.inventory, config.health),
            )
            await reclaim.configure(config.reclaim, sources)
        finally:
            self._notify_status(READY)
        if change:
            mode.devices_changed()

    async def _supervise_daemons(
        self,
        stack: AsyncExitStack,
        thread: MonitoredThread,
        device_state: DeviceState,
        mode: Mode,
        setups: tuple[DeviceSetup, ...],
    ) -> None:
        from dra_agent.agent.mps_supervisor import MpsSupervisor
        from dra_agent.agent.setup_registry import daemon_checks

        for check in daemon_checks(setups):
            supervisor = MpsSupervisor(self._config, check, thread, device_state, mode, is_newest=self._is_newest)
            stack.push_async_callback(supervisor.stop)
            await supervisor.start()

    async def _serve_hooks(self, stack: AsyncExitStack, setups: tuple[DeviceSetup, ...]) -> None:
        from dra_agent.agent.hook_server import HookServer
        from dra_agent.agent.setup_registry import hook_tasks
        from dra_agent.device_setup.container_hook import ContainerHook

        hooks = HookServer(ContainerHook(self._config.host_folder).socket, hook_tasks(setups))
        stack.push_async_callback(hooks.stop)
        await hooks.start()

    def _preparer(
        self,
        ledger: JournalLedger,
        device_state: DeviceState,
        setups: tuple[DeviceSetup, ...],
        ownership: Ownership,
    ) -> Preparer:
        from dra_agent.agent.setup_registry import vendor_edits
        from dra_agent.cdi.directory import SpecDirectory
        from dra_agent.cdi.metadata import MetadataDirectory

        config = self._config
        shared_as = self._shared_as
        edit_providers = vendor_edits(device_state.host)
        specs = self._parts.specs = SpecDirectory(config.cdi_dir, config.driver_name)
        if why := specs.unwritable_reason():
            log.error("claims cannot be prepared", extra={"reason": why})
        self._liveness.watch(specs.replaced_reason, CDI_REPLACED_GRACE_S)
        metadata = MetadataDirectory(config.metadata_dir, config.driver_name, enabled=config.device_metadata)
        metrics = self._observability.metrics
        observe_phase = (lambda phase, seconds: None) if metrics is None else metrics.observe_phase
        return Preparer(
            config.driver_name,
            ledger,
            specs,
            device_state.lookup,
            node=config.node,
            host=device_state.host,
            edit_providers=edit_providers,
            setups=setups,
            metadata=metadata,
            ownership=ownership,
            device_locks=KeyedLocks(config.state_dir / "locks" / "devices", process=shared_as) if shared_as else None,
            observe_phase=observe_phase,
        )

    def _choose(self, stack: AsyncExitStack, thread: MonitoredThread) -> Mode:
        mode: Mode
        reports, on_drain_change = self._observability, self._drain_changed.set
        if self._config.standalone:
            with garbage_collection.paused():
                from dra_agent.agent.standalone_mode import StandaloneMode

            mode = StandaloneMode(self._config, self._liveness, reports.metrics, self._reload, on_drain_change)
        else:
            with garbage_collection.paused():
                from dra_agent.agent.kubernetes_mode import KubernetesMode

            mode = KubernetesMode(
                self._config,
                thread,
                reports.metrics,
                liveness=self._liveness,
                leadership=self._leadership,
                on_status_change=self._notify_status,
                claim_pods=reports.claim_pods,
                on_drain_change=on_drain_change,
            )
        self._parts.mode = mode
        stack.push_async_callback(mode.close)
        return mode

    def _ready(self, claims: int) -> None:
        device_state = self._parts.device_state
        assert device_state is not None
        # Objects that live as long as the process are excluded from garbage collection.
        gc.collect()
        gc.freeze()
        self._readiness.not_ready = ""
        self._signals.disable_exit_timer()
        devices = len(device_state.inventory.devices)
        self._notify_status(READY)
        log.info(
            "ready",
            extra={
                "version": __version__,
                "devices": devices,
                "claims": claims,
                "seconds": round(time.monotonic() - self._started_at, 3),
            },
        )

    def _notify_status(self, *states: str) -> None:
        """Send the status line and states to the service manager."""
        device_state, mode = self._parts.device_state, self._parts.mode
        if device_state is None or mode is None or self._readiness.not_ready:
            return
        devices = f"{len(device_state.inventory.devices)} devices on node {self._config.node}"
        status = devices + (f", {mode.status}" if mode.status else "")
        if problems := self._reload.status.problems:
            status += f"; configuration not reloaded: {problems[0]}"
        self._notifier.send(*states, f"STATUS={status}")

    def _notify_from_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the agent has stopped
            loop.call_soon_threadsafe(self._notify_status)

    async def _send_heartbeats(self) -> None:
        while True:
            self._liveness.heartbeat()
            await asyncio.sleep(BEAT_INTERVAL_S)

    async def _run_until_stopped(self) -> None:
        every = (
            BEAT_INTERVAL_S if self._notifier.watchdog is None else min(BEAT_INTERVAL_S, self._notifier.watchdog / 3)
        )
        failing = False
        while not self._stop.is_set() or self._has_claims_to_release():
            self._liveness.heartbeat()
            failures = self._liveness.failures()
            if not failures:
                self._notifier.send(WATCHDOG)
            elif not failing:
                log.error("the agent is stuck", extra={"failures": failures})
            failing = bool(failures)
            if self._stop.is_set():
                await self._wait_drain_change()
                continue
            try:
                async with asyncio.timeout(every):
                    await self._stop.wait()
            except TimeoutError:
                continue

    def _on_stop(self) -> None:
        self._second_stop = self._stop.is_set()
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
        self._stop.set()
        self._drain_changed.set()

    async def _wait_drain_change(self) -> None:
        """Wait until the result of `_has_claims_to_release` may differ from that of its last call."""
        reclaim, timeout_s = self._parts.reclaim, DRAIN_CHECK_INTERVAL_S
        if self._notifier.watchdog is not None:
            timeout_s = min(timeout_s, self._notifier.watchdog / 3)
        if reclaim is not None:
            timeout_s = min(timeout_s, max(0.0, self._stop_delay_left_s(reclaim)))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._drain_changed.wait()

    def _has_claims_to_release(self) -> bool:
        """Return True while claims must be released through this agent before the node is reclaimed."""
        self._drain_changed.clear()  # a change from here on is one after this check
        mode, reclaim = self._parts.mode, self._parts.reclaim
        if self._second_stop or mode is None or reclaim is None or not mode.draining:
            return False
        if self._stop_delay_left_s(reclaim) <= 0:
            if self._stop_is_delayed:
                log.warning("the stop is not delayed further: claims are still prepared")
            return False
        if not self._stop_is_delayed:
            self._stop_is_delayed = True
            self._signals.disable_exit_timer()
            log.warning("stop is delayed: the node is being reclaimed, and claims must be released first")
        self._notifier.send(f"EXTEND_TIMEOUT_USEC={int(EXTEND_TIMEOUT_S * 1e6)}", "STATUS=releasing claims")
        return True

    def _stop_delay_left_s(self, reclaim: ReclaimRuntime) -> float:
        """Return the seconds for which a stop may still wait for claims: until the deadline, or for `STOP_LIMIT_S`."""
        if (remaining_s := reclaim.service.seconds_left) is not None:
            return remaining_s
        return STOP_LIMIT_S if self._stopped_at is None else self._stopped_at + STOP_LIMIT_S - time.monotonic()


def _signal_sources(settings: ReclaimSettings, host: Host, mode: Mode) -> list[SignalSource]:
    """Return new sources of reclaim signals; raises UsageError for a source with an invalid configuration."""
    return [*select_sources(settings, host), *mode.signal_sources(settings)]
