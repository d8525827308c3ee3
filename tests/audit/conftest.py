"""How much of a case's releases the short half of an audit takes, and its record."""

import pytest


@pytest.fixture
def few_releases(key):
    """Audits a case with a twentieth of its releases, and at least two hundred."""
    return lambda case: case.audit(
        key=key, num_releases=max(200, case.num_releases // 20)
    )


@pytest.fixture(scope="session")
def recorded():
    """What is recorded of each case, and stands on the page of guarantees."""
    reason = "the records are not part of a source distribution"
    audit_record = pytest.importorskip("benchmarks.audit_record", reason=reason)
    guarantees = pytest.importorskip("benchmarks.guarantees", reason=reason)
    return audit_record.read(guarantees.RECORD)
