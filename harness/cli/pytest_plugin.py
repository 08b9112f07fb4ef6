"""A pytest plug-in: the fixture ``foretoken_baseline`` holds a pair against its baseline. Imports nothing of ours until used.

def test_the_pair(foretoken_baseline):
    foretoken_baseline("pair.json")
"""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def foretoken_baseline(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function of a baseline file (relative to the test's) that fails the test where a number moved.

    ``new_draft=True`` as `foretoken regress --new-draft`. A failure is as many lines as numbers moved, without a traceback.
    """

    def check(file: str | Path, new_draft: bool = False) -> None:
        from harness.core.messages import FOR_THE_USER
        from harness.report.holding import hold

        try:
            judgement = hold(request.path.parent / file, new_draft, quiet=True)
        except FOR_THE_USER as error:
            pytest.fail(f"foretoken: {error}", pytrace=False)
        if judgement.moved:
            pytest.fail(judgement.as_text(), pytrace=False)

    return check
