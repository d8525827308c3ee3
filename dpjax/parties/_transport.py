"""Transports of messages: over JAX's distributed runtime, or between threads."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from dpjax import _validate


class Transport(Protocol):
    """A party's connection to all other parties.

    Attributes:
        party: the number of this party, from 0.
        num_parties: the number of parties.
    """

    party: int
    num_parties: int

    def exchange(self, message: bytes, num_bytes: int) -> list[bytes | None]:
        """Sends a message to all, and returns one message for each party.

        All parties call it together, and get the same list. It has None for a party
        that sent nothing, or a message of another length than num_bytes.
        """
        ...


class JaxTransport:
    """Sends messages by collectives of `jax.distributed`: each process is one party.

    The process index is the party's number. On CPU the collectives run over TCP (Gloo),
    unencrypted. Every process takes part in every exchange, even with nothing to send.
    """

    def __init__(self) -> None:
        self.party = jax.process_index()
        self.num_parties = jax.process_count()
        rule = "at least two processes, joined by jax.distributed.initialize"
        _validate.require(self.num_parties >= 2, "num_parties", self.num_parties, rule)

    def exchange(self, message: bytes, num_bytes: int) -> list[bytes | None]:
        """Sends a message; returns all parties' messages, None if not of num_bytes."""
        # A collective has one shape in all processes, so sizes are exchanged first, and
        # they are sent as bytes, because JAX may narrow integers.
        mine = np.array([len(message), num_bytes], np.int64).view(np.uint8)
        gather = multihost_utils.process_allgather
        sizes = np.asarray(gather(mine)).view(np.int64)
        full = message if len(message) == num_bytes else b""
        row = np.frombuffer(full.ljust(sizes[:, 1].max(), b"\0"), np.uint8)
        sent = np.asarray(gather(row))
        is_sent = (sizes == num_bytes).all(axis=1)
        return [
            row[:num_bytes].tobytes() if is_whole else None
            for row, is_whole in zip(sent, is_sent, strict=True)
        ]


def run_parties(
    party_fn: Callable[[Transport], Any], num_parties: int, *, timeout: float = 60.0
) -> list[Any]:
    """Runs parties in the threads of one process, for simulations and tests.

    Args:
        party_fn: the program of a party, `party_fn(transport) -> result`. A party that
            raises or returns sends nothing afterwards.
        num_parties: number of parties.
        timeout: time limit for the messages of the other parties, in seconds.

    Returns:
        The results, in the order of the parties' numbers. If parties raise exceptions,
        the first is raised instead.

    Example:
        >>> run_parties(lambda x: x.exchange(b"party %d" % x.party, 7), 2)
        [[b'party 0', b'party 1'], [b'party 0', b'party 1']]
    """
    _validate.count(num_parties=num_parties)
    board = _Board(num_parties, timeout)
    errors: list[Exception] = []

    def run(party: int) -> Any:
        try:
            return party_fn(_ThreadTransport(party, num_parties, board))
        except Exception as error:  # raised again below
            error.add_note(f"This is the error of party {party}.")
            errors.append(error)
        finally:
            board.leave(party)

    with ThreadPoolExecutor(num_parties) as pool:
        results = [*pool.map(run, range(num_parties))]
    if errors:
        raise errors[0]
    return results


@dataclass
class _ThreadTransport:
    party: int
    num_parties: int
    board: "_Board"

    def exchange(self, message: bytes, num_bytes: int) -> list[bytes | None]:
        messages = self.board.post(self.party, message)
        return [x if x and len(x) == num_bytes else None for x in messages]


class _Board:
    """Exchanges messages between the parties of `run_parties`, which are threads."""

    def __init__(self, num_parties: int, timeout: float):
        self._timeout, self._changed = timeout, threading.Condition()
        self._present = set(range(num_parties))
        # Two messages of a party are kept: all have read the older when it posts again.
        self._counts = [0] * num_parties
        self._last = [[b"", b""] for _ in range(num_parties)]

    def post(self, party: int, message: bytes) -> list[bytes | None]:
        """Posts a message; awaits and returns one of each party, None if it left."""
        deadline = time.monotonic() + self._timeout
        with self._changed:
            index = self._counts[party]
            self._last[party][index % 2] = message
            self._counts[party] += 1
            self._changed.notify_all()
            while awaited := [i for i in self._present if self._counts[i] <= index]:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"parties {awaited} sent nothing: raise timeout")
            return [
                self._last[i][index % 2] if self._counts[i] > index else None
                for i in range(len(self._counts))
            ]

    def leave(self, party: int) -> None:
        with self._changed:
            self._present.discard(party)
            self._changed.notify_all()
