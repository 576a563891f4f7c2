"""Every claimable device of a host: attributes, device nodes and health."""
