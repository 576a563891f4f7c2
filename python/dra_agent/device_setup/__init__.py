"""Device setups, one package each. They implement `prepare.setup.DeviceSetup`; only the composition root knows them."""
