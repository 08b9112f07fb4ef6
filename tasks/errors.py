"""The one error that tasks and sources raise about data that cannot be used."""


class DataError(ValueError):
    """Data that is missing, gone or malformed: names the source, the file and line where there is one, and what to do."""
