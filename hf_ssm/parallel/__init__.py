"""Inputs larger than a device: recomputation along the sequence."""
