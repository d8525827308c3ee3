"""What tests of gradients share."""

import hypothesis
import pytest


@pytest.fixture
def search(request):
    """Checks a few examples of strategies; with `--all-cases` many."""
    is_long = request.config.getoption("--all-cases")

    def run(check, *strategies, few, many):
        settings = hypothesis.settings(
            max_examples=many if is_long else few,
            derandomize=True,
            deadline=None,
            database=None,
        )
        settings(hypothesis.given(*strategies)(check))()

    return run
