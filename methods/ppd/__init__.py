"""Predictive pipelined decoding: the pipeline, its processes, early heads, match rates, theory."""
