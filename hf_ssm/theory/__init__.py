"""Quantities of the papers: pure functions of tensors."""
