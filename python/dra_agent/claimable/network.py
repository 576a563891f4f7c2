"""Reads the host's network: from the kernel on a real host, from files on a simulated or recorded one."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from dra_agent.claimable import kernel_network, network_files
from dra_agent.claimable.network_view import NetworkView
from dra_agent.claimable.use import MISSING, HostUse, host_use
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.printable import printable
from dra_agent.threads import NoThreadError

BUDGET_S = 2.0
"""Seconds for all answers of the kernel; a host with 1,000 interfaces and 10,000 routes needs a tenth of it."""
MAX_ROUTES = 100_000
"""More are those of a router with the routes of the Internet."""
_GRACE_S = 0.5
"""Seconds by which a reader may exceed its budget before it counts as hung."""
_LATE_HINT = "the kernel's log names tasks that hang, such as those of a driver that is reset"
_DENIED = frozenset({errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT})
_DENIED_HINT = "allow AF_NETLINK sockets (RestrictAddressFamilies= of the unit)"


class UnknownUseError(RetryableError):
    """The view does not show the interface's use, although the kernel has answered: the next one may show no more."""


class HostNetwork:
    """The network of one host; keeps the last complete view while the kernel does not answer. Thread-safe."""

    def __init__(self, host: Host, *, budget: float = BUDGET_S, max_routes: int = MAX_ROUTES) -> None:
        self._host = host
        self._budget = budget
        self._max_routes = max_routes
        self._is_real = host.sysfs == Path("/sys") and host.proc == Path("/proc") and host.net is None
        self._tables = host.net or host.proc / "net"
        # In a thread: a dump waits for the kernel's RTNL lock without a timeout, which a driver that hangs keeps.
        self._thread = DaemonExecutor(1, "network")
        self._running: Future[NetworkView] | None = None
        self._last: NetworkView | None = None
        self._lock = threading.Lock()

    def present_use(self, interface: str, where: str) -> HostUse | None:
        """Return how the host uses an interface now, for a claim that is about to change it.

        RetryableError with the device `where` if that is not known: an earlier view is not enough. UnknownUseError if
        the kernel was not late.
        """
        view = self.view([])
        use = host_use(replace(view, incomplete=None), interface)
        is_here = interface in view.interfaces
        unknown = view.late or view.incomplete or (None if is_here else MISSING)
        if unknown is None or (view.late is None and is_here and use is not None and use.code == "host-interface"):
            return use
        shown = printable(interface, line=True)
        error = UnknownUseError if view.late is None else RetryableError
        raise error(f"it is not known whether the host uses {shown}: {unknown}", where=where, hint="the agent retries")

    def view(self, problems: list[Diagnostic]) -> NetworkView:
        """Return the present network, or what is known of it; the view's problems are added to `problems`."""
        with self._lock:
            return self._view(problems)

    def _view(self, problems: list[Diagnostic]) -> NetworkView:
        view = self._unknown() or self._read()
        if view.incomplete is not None and not view.problems:
            warning = f"{view.incomplete}, so no interface can be claimed whose use is not known"
            view = replace(view, problems=(Diagnostic("network", warning, severity="warning"),))
        if view.incomplete is None and view.late is None:
            self._last = view
        problems += view.problems
        return view

    def close(self) -> None:
        """Keep no thread; never waits for the kernel."""
        self._thread.shutdown()

    def _unknown(self) -> NetworkView | None:
        """Return an empty view if the agent cannot see the host's network."""
        net = self._host.net
        # A configured path without files is an error, not a host without a default route.
        if net is not None and not any(_is_file(net / name) for name in ("route", "ipv6_route")):
            reason = f"neither route nor ipv6_route can be read in {net}"
            hint = "name the host's /proc/1/net (--net-root)"
        # /proc/net and netlink belong to the agent's network namespace, sysfs to that of its mount.
        elif self._is_real and (strange := network_files.foreign_interfaces(self._host.sysfs / "class/net")):
            reason = f"the agent has another network namespace ({printable(strange[0], line=True)} is not in it)"
            hint = "provide the host's routes (--net-root), or run it in the host's network"
        else:
            return None
        message = f"{reason}, so the interfaces that the host needs are unknown, and none can be claimed"
        where = "network" if net is None else str(net)
        return NetworkView({}, reason, problems=(Diagnostic(where, message, hint, severity="warning"),))

    def _read(self) -> NetworkView:
        try:
            return self._from_kernel() if self._is_real else self._from_files()
        except OSError as error:
            is_late = isinstance(error, TimeoutError)
            reason = "the host's network could not be read" + (
                f" within {self._budget:g} s" if is_late else f": {error.strerror}"
            )
            hint = _LATE_HINT if is_late else _DENIED_HINT if error.errno in _DENIED else None
        where = "rtnetlink" if self._is_real else str(self._tables)
        if self._last is not None:
            message = f"{reason}; the last known state of {len(self._last.interfaces):,} interfaces is used"
            warning = Diagnostic(where, message, hint, severity="warning")
            return replace(self._last, late=reason, problems=(warning,))
        message = f"{reason}; until then no interface can be claimed whose use is not known"
        warning = Diagnostic(where, message, hint, severity="warning")
        view = NetworkView({})
        if self._is_real:
            with suppress(TimeoutError):
                view = self._from_files()
        return replace(view, incomplete=reason, problems=(*view.problems, warning))

    def _from_kernel(self) -> NetworkView:
        if self._running is not None and not self._running.done():
            raise TimeoutError
        try:
            self._running = self._thread.submit(kernel_network.read, time.monotonic() + self._budget, self._max_routes)
        except NoThreadError as error:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        view = self._running.result(self._budget + _GRACE_S)
        self._running = None
        return view

    def _from_files(self) -> NetworkView:
        return network_files.read(self._host.sysfs, self._tables, time.monotonic() + self._budget, self._max_routes)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # its folder cannot be entered
        return False
