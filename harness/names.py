"""Names that flags and descriptions share. Imports nothing: a command line is read, and a cluster begins to start, before torch
is there."""

DTYPES = ("float32", "float64", "bfloat16", "float16")
DRAFTING = ("drafter-alone", "speculative", "speculative-beam")  # methods
