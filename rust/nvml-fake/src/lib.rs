//! A stand-in for `libnvidia-ml.so.1` that serves a simulated host.
