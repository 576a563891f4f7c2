"""Spot reclaim: notices that the host is about to be taken, and has its claims released in time.

The way of a notice: `signals` look, `picture` keeps what each source says, `notice` merges it into one state, `store`
keeps that state over a restart, and `service` tells whoever acts on it.
"""

from __future__ import annotations
