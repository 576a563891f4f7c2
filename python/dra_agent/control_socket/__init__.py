"""What processes of this host say to each other over a unix socket: one JSON line there, one JSON line back.

Which requests there are is said by whoever listens (standalone mode's claims, the reclaim trigger).
"""
