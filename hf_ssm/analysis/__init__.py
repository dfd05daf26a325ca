"""The theory applied to a given model and data: recordings of the operators' inputs, measures, report."""
