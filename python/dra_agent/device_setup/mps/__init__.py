"""MPS: one control daemon for each GPU that claims share. It runs as long as a share exists."""
