"""Products of a few rows with a large weight, as rounds make them: a compiled loop, and where it is the faster."""
