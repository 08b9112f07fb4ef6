"""Puts the helper module of these tests on the path; the trained pair."""

import pytest
import toy_blocks


@pytest.fixture(scope="session")
def trained() -> toy_blocks.Pair:
    """In fp64, evaluation mode, without gradients. A few seconds, once."""
    return toy_blocks.train_pair()
