"""Errors of methods: about a caller's values, and about sub-processes."""

from kernels.inputs import InputError, NotFiniteError

__all__ = ["InputError", "NotFiniteError", "WorkerError"]


class WorkerError(Exception):
    """A sub-process died or does not answer. What runs after it cannot be trusted."""
