"""Requests between processes of this host over a unix socket: one JSON line each way.

The listener defines the requests (standalone mode's claims, the reclaim control socket).
"""
