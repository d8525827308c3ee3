"""Bad input: a table of what is refused, each with words of its message."""

import pytest


def refused(make, *cases, said="{}"):
    """Returns a test that `make(what)` raises ValueError, for each (what, message).

    said: the message in words that all share, if a case has but a name.
    """

    @pytest.mark.parametrize(("what", "message"), cases)
    def test(what, message):
        with pytest.raises(ValueError, match=said.format(message)):
            make(what)

    return test
