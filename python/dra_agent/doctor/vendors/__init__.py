"""What the doctor knows of each vendor's driver: one module for each, found by the name in the registry of vendors."""
