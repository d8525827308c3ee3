"""How messages travel: over JAX's distributed runtime, or between threads."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from dpjax import _validate


class Transport(Protocol):
    """One party's way to all the others.

    Attributes:
        party: its number, from 0 up.
        num_parties: how many there are.
    """

    party: int
    num_parties: int

    def exchange(self, message: bytes, num_bytes: int) -> list[bytes | None]:
        """Sends a message to all, and returns the messages of all, one a party.

        It is called by all parties in step. The list is the same for all of them: None
        stands for a party that sent nothing, or a message that is not num_bytes long.
        """
        ...


class JaxTransport:
    """Messages as collectives of `jax.distributed`: one party a process.

    Call `jax.distributed.initialize` first; the process number is the party's. On CPU
    the collectives run over TCP (Gloo), unencrypted: what is secret in a message must
    be masked. Every process takes part in every exchange, those included that have
    nothing to send. A process that dies ends the job for all: JAX stops the others.

    Raises:
        ValueError: where fewer than two processes run.
    """

    def __init__(self) -> None:
        self.party = jax.process_index()
        self.num_parties = jax.process_count()
        _validate.require(
            self.num_parties >= 2,
            "num_parties",
            self.num_parties,
            "at least two processes, joined by jax.distributed.initialize",
        )

    def exchange(self, message: bytes, num_bytes: int) -> list[bytes | None]:
        """See `Transport.exchange`."""
        # A collective has one shape in all processes, so sizes go ahead; as bytes, for
        # JAX may narrow integers.
        mine = np.array([len(message), num_bytes], np.int64).view(np.uint8)
        sizes = _gather(mine).view(np.int64)
        whole = message if len(message) == num_bytes else b""
        sent = _gather(np.frombuffer(whole.ljust(sizes[:, 1].max(), b"\0"), np.uint8))
        is_sent = (sizes == num_bytes).all(axis=1)
        return [
            row[:num_bytes].tobytes() if is_whole else None
            for row, is_whole in zip(sent, is_sent, strict=True)
        ]


def _gather(row: np.ndarray) -> np.ndarray:
    """Returns the rows of all processes."""
    return np.asarray(multihost_utils.process_allgather(row))


def run_parties(
    party_fn: Callable[[Transport], Any],
    num_parties: int,
    *,
    timeout: float = 60.0,
) -> list[Any]:
    """Runs parties in the threads of one process: to simulate, and to test.

    Args:
        party_fn: what a party does, `party_fn(transport) -> result`. A party that
            raises or returns sends nothing from then on.
        num_parties: how many parties.
        timeout: for how many seconds a party waits for the others' messages.

    Returns:
        The results, in the order of the parties' numbers.

    Raises:
        Exception: the first one among the parties', if any.

    Example:
        >>> def greet(transport):
        ...     return transport.exchange(b"party %d" % transport.party, 7)
        >>> run_parties(greet, 2)
        [[b'party 0', b'party 1'], [b'party 0', b'party 1']]
    """
    _validate.count(num_parties=num_parties)
    board = _Board(num_parties, timeout)
    results: list[Any] = [None] * num_parties
    errors: list[Exception] = []

    def run(party: int) -> None:
        try:
            results[party] = party_fn(_ThreadTransport(party, board))
        except Exception as error:  # raised again below
            errors.append(error)
        finally:
            board.leave(party)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(num_parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class _ThreadTransport:
    def __init__(self, party: int, board: "_Board"):
        self.party = party
        self.num_parties = board.num_parties
        self._board = board

    def exchange(self, message: bytes, num_bytes: int) -> list[bytes | None]:
        messages = self._board.post(self.party, message)
        return [one if one and len(one) == num_bytes else None for one in messages]


class _Board:
    """Where threads leave their messages, and wait for those of the others."""

    def __init__(self, num_parties: int, timeout: float):
        self.num_parties = num_parties
        self._timeout = timeout
        self._changed = threading.Condition()
        self._present = set(range(num_parties))
        # The last two of each party: when it posts the next, all have read the first.
        self._counts = [0] * num_parties
        self._last = [[b"", b""] for _ in range(num_parties)]

    def post(self, party: int, message: bytes) -> list[bytes | None]:
        deadline = time.monotonic() + self._timeout
        with self._changed:
            index = self._counts[party]
            self._last[party][index % 2] = message
            self._counts[party] += 1
            self._changed.notify_all()
            while awaited := [i for i in self._present if self._counts[i] <= index]:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"no message of parties {awaited}")
            return [
                self._last[i][index % 2] if self._counts[i] > index else None
                for i in range(self.num_parties)
            ]

    def leave(self, party: int) -> None:
        with self._changed:
            self._present.discard(party)
            self._changed.notify_all()
