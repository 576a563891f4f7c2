"""Vendor set-ups, one package each: what `prepare.setup.VendorSetup` asks for, known to the composition root alone."""
