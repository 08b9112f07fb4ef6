"""The error that every room raises about a value that a caller gave."""


class InputError(ValueError):
    """A value that cannot work: the message names the field, the value, what was expected and what to do."""


class NotFiniteError(InputError):
    """Logits from which no token can be chosen: one example's, where others may have none."""
