"""The agent as the first process of a container: it gets every process whose parent has ended, and has to reap it.

One process cannot do both: whoever waits for any child also takes the exit statuses of the agent's own commands. So
the first process only reaps and forwards signals, and the agent is its child. The first process shares its memory.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_in_child() -> None:
    """Continue in a child if this is the first process of its PID namespace, which ends with the child.

    Call it before any thread is started.
    """
    if os.getpid() != 1:
        return
    awaited = {*FORWARDED, signal.SIGCHLD}
    # Blocked before the fork: a signal that comes now is not lost, although the kernel has no default actions here.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    from dra_agent.processes.tree import reap

    agent = os.fork()
    if agent == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait(awaited)
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(agent, number)
        elif (code := reap()[0].get(agent)) is not None:
            os._exit(code if code >= 0 else 128 - code)  # nothing of the forked interpreter may run
