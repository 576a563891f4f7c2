"""What is wrong on this host, and how to mend it."""
