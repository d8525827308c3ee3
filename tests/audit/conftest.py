"""How much of a case's releases the short half of an audit takes."""

import pytest


@pytest.fixture
def few_releases(key):
    """Audits a case with a twentieth of its releases, and at least two hundred."""
    return lambda case: case.audit(
        key=key, num_releases=max(200, case.num_releases // 20)
    )
