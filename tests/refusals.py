"""Bad input: a table of what is refused, each with words of its message."""

import pytest


def refused(make, *cases):
    """Returns a test that `make(what)` raises ValueError, for each (what, message)."""

    @pytest.mark.parametrize(("what", "message"), cases)
    def test(what, message):
        with pytest.raises(ValueError, match=message):
            make(what)

    return test
