"""The errors that the methods raise about what a caller gave them, and about processes of their own."""


class InputError(ValueError):
    """A value that cannot work: the message names the field, the value, what was expected and what to do."""


class WorkerError(Exception):
    """A process that a method works with died or does not answer: nothing that is run after it could be trusted."""
