"""Binding conditions (KEP-5007): claims are prepared before the scheduler binds their pods to the node.

The scheduler waits for a condition in a claim's status, and chooses devices again after a failure.
"""
