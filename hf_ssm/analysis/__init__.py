"""What the theory says of a given model and data: recordings of what its operators see, the report, its pictures."""
