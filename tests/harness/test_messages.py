"""What of an error is printed."""

import pytest
import torch

from harness.core.messages import first_line, is_memory, kind_and_line, one_line


def test_an_error_without_a_word_is_called_by_its_class() -> None:
    assert [first_line(OSError()), kind_and_line(OSError()), one_line(OSError())] == ["OSError", "OSError", ""]


def test_lines_are_put_together_where_the_first_says_nothing_alone() -> None:
    error = ValueError("\n  two things:\n  one\n\n other")
    assert first_line(error) == "two things: one"
    assert kind_and_line(error) == "ValueError: two things: one other"


def test_only_a_full_memory_is_called_one() -> None:
    with pytest.raises(RuntimeError) as told:
        torch.empty(2**50)  # more than a processor can address
    windows = RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.")
    assert all(map(is_memory, (told.value, windows, MemoryError(), torch.OutOfMemoryError("no memory left"))))
    assert not any(map(is_memory, (RuntimeError("shapes"), OSError(12, "no"), KeyError("memory"))))
