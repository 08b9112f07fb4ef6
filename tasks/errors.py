"""The error of tasks and sources: data that cannot be used."""


class DataError(ValueError):
    """Data that is missing, gone or malformed: names the source, the file and line where there is one, and what to do."""
