"""MPS: one control daemon for each GPU that claims share, for as long as any of them does."""
