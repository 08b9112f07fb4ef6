"""What the harness raises about what a user asked for; the command line prints it and exits with status 2."""


class UsageError(ValueError):
    """Names the field, the value, what was expected and what to do, in one line."""


class Unavailable(UsageError):
    """A model or data set of the Hub that cannot be had: gone, gated, or out of reach."""
