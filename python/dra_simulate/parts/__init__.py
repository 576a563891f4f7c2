"""Catalogue of hardware: PCI functions as the profiles plug them together."""
