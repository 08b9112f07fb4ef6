"""What errors say: which are meant for the user as they are, what of one fits into a line, and which is for want of memory."""

from harness.core.errors import UsageError
from methods.errors import InputError
from tasks.base import DataError

FOR_THE_USER = (UsageError, InputError, DataError)


def one_line(error: BaseException) -> str:
    """Return all that an error says, in one line."""
    return " ".join(str(error).split())


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something; one that ends with a colon needs the next."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def kind_and_line(error: BaseException) -> str:
    """Return the name of an error's class and all that it says, in one line."""
    return f"{type(error).__name__}: {one_line(error)}".rstrip(": ")


def is_memory(error: BaseException) -> bool:
    """Tell whether memory did not suffice: Python's error, torch's on a device, or the RuntimeError of its CPU allocator."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or any(words in str(error) for words in ("allocate memory", "not enough memory"))  # Linux's, Windows'
