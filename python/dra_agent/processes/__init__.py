"""Processes of a host, as /proc shows them: their state, their open files, their container, and which are hidden."""
