"""Explains pods, claims and workloads of a cluster, and counts how many more copies fit."""
