"""Node reclaim: receives spot interruption notices and has claims released in time.

The way of a notice: `signals` poll sources, `signal_tracker` keeps the signals of each, `state` merges them,
`state_file` persists the state over a restart, and `service` notifies its listeners.
"""

from __future__ import annotations
