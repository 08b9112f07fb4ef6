"""The one error that the methods raise about what a caller gave them."""


class InputError(ValueError):
    """A value that cannot work: the message names the field, the value, what was expected and what to do."""
