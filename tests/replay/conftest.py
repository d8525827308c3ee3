"""The replay of mechanisms, for a file of tests."""

import pytest

from tests.replay import _replay


@pytest.fixture(scope="module", autouse=True)
def programs_of_replays(compiled_quickly):
    """What is released is compared, not how quickly."""


@pytest.fixture(scope="module")
def hooks(programs_of_replays):
    """A `Replay`, its hooks in place for the whole file, so that programs are kept."""
    with pytest.MonkeyPatch.context() as patch, _replay.fresh_programs():
        yield _replay.installed(patch)
