"""Telemetry of devices and of the claims that hold them: opt-in, sampled on separate threads, off the prepare path.

`sampler` reads the devices through `sources`, `plausibility` drops what cannot be true, `claims` finds the claim that a
value belongs to, and `accounting` keeps the counters of claims across restarts.
"""
