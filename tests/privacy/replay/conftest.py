"""The replay of mechanisms, for a file of tests."""

import jax
import pytest

from tests.privacy.replay import _replay


@pytest.fixture(scope="module", autouse=True)
def programs_of_replays(compiled_quickly):
    """What is released is compared, not how quickly."""


@pytest.fixture(scope="module")
def hooks(programs_of_replays):
    """A `Replay`, its hooks in place for the whole file, so that programs are kept."""
    with pytest.MonkeyPatch.context() as patch:
        jax.clear_caches()  # they were traced without hooks
        # A public rule asks for hundreds of records before columns bend: here few do.
        few = (12.0, 0.0), (8.0, 0.0)
        patch.setattr("dpjax.solvers.additive._curves.LABEL_RECORDS", few)
        patch.setattr("dpjax.solvers.additive._curves.BEND_RECORDS", few[1])
        yield _replay.installed(patch)
    jax.clear_caches()
