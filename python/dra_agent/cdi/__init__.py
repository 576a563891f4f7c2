"""Container Device Interface specs: what a container gets of a device, and the files that say so."""
