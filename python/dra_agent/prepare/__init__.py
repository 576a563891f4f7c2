"""From an allocated claim to a container-ready one: ledger, vendor set-up, CDI spec."""
