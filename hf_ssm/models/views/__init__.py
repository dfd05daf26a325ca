"""Capabilities of all families, outside the layers: each arranges the rows before them and restores the rest after."""
