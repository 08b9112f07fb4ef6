"""Verification kernels, a folder an operation: each kernel next to its reference."""
