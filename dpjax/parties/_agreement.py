"""What the parties tell each other before the first sum, all of it public."""

import hashlib

from dpjax import _validate
from dpjax.parties._secure_sum import exchange_all
from dpjax.parties._transport import Transport

_COUNT_BYTES = 8


def num_secret_shares(num_parties: int, max_colluding: int, max_dropouts: int) -> int:
    """K - C - D, how many noise shares are in every sum and known to no colluder.

    Args:
        num_parties: K.
        max_colluding: C, the parties that may put together all that they know.
        max_dropouts: D, the parties that may drop.

    Raises:
        ValueError: where an argument is negative, or no share is left.

    Example:
        >>> num_secret_shares(4, 1, 1)
        2
    """
    for name, value in (
        ("max_colluding", max_colluding),
        ("max_dropouts", max_dropouts),
    ):
        _validate.require(
            isinstance(value, int) and value >= 0, name, value, "an integer, 0 or above"
        )
    shares = num_parties - max_colluding - max_dropouts
    _validate.require(
        shares >= 1,
        "max_colluding + max_dropouts",
        max_colluding + max_dropouts,
        f"less than the number of parties, {num_parties}: someone must add noise that "
        "no colluder knows",
    )
    return shares


def agree(transport: Transport, settings: object, num_records: int) -> list[int]:
    """Tells all parties how many records this one has, and learns the same of them.

    Args:
        transport: the way to the others.
        settings: what must be the same for all, by its `repr`.
        num_records: of this party.

    Returns:
        The numbers of records, in the order of the parties' numbers.

    Raises:
        PartyError: where a party sends nothing.
        ValueError: where the settings of a party differ from this one's.

    Example:
        >>> from dpjax.parties import run_parties
        >>> run_parties(lambda transport: agree(transport, "v1", 100), 2)
        [[100, 100], [100, 100]]
    """
    digest = hashlib.sha256(repr(settings).encode()).digest()
    message = num_records.to_bytes(_COUNT_BYTES, "little") + digest
    messages = exchange_all(transport, message, len(message))
    others = [i for i, each in enumerate(messages) if each[_COUNT_BYTES:] != digest]
    if others:
        raise ValueError(
            f"arguments must be the same for all parties, but those of party "
            f"{', '.join(map(str, others))} differ from party {transport.party}'s."
        )
    return [int.from_bytes(each[:_COUNT_BYTES], "little") for each in messages]
