"""The folder of a metric, as evaluate wants it."""
