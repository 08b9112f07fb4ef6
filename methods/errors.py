"""The errors that the methods raise about what a caller gave them, and about processes of their own."""

from kernels.errors import InputError, NotFiniteError

__all__ = ["InputError", "NotFiniteError", "WorkerError"]


class WorkerError(Exception):
    """A process that a method works with died or does not answer: nothing that is run after it could be trusted."""
