"""What a recording contains of each vendor: one module for each, found by the name in the registry of vendors."""
