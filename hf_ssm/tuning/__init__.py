"""Tuning with theory."""
