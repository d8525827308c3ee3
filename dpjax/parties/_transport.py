"""Transports of messages: over JAX's distributed runtime, or between threads."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
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
        """Sends bytes to all processes, and returns a list of each process's bytes.

        It has None for a process that did not send exactly num_bytes bytes.
        """
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
    parties = range(num_parties)
    queues = [[SimpleQueue() for _ in parties] for _ in parties]
    errors: list[Exception] = []

    def run(party: int) -> Any:
        """Returns a party's result, or adds the exception that it raises to errors."""
        transport = _ThreadTransport(party, num_parties, queues, timeout)
        try:
            return party_fn(transport)
        except Exception as error:  # raised again below
            error.add_note(f"This is the error of party {party}.")
            errors.append(error)
        finally:
            transport.send(None)

    with ThreadPoolExecutor(num_parties) as pool:
        results = [*pool.map(run, parties)]
    if errors:
        raise errors[0]
    return results


@dataclass
class _ThreadTransport:
    """The `Transport` of one party in `run_parties`, whose parties are threads."""

    party: int
    num_parties: int
    queues: list[list[SimpleQueue[bytes | None]]]  # messages of i to j in queues[i][j]
    timeout: float

    def exchange(self, message: bytes, num_bytes: int) -> list[bytes | None]:
        """Sends bytes to all threads, and returns a list of each thread's bytes.

        It has None for a party that has left, or did not send exactly num_bytes bytes.
        """
        deadline, messages = time.monotonic() + self.timeout, []
        self.send(message)
        for party, inbox in enumerate(row[self.party] for row in self.queues):
            try:
                received = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                text = f"parties {[party]} sent nothing: raise timeout"
                raise TimeoutError(text) from None
            if received is None:
                inbox.put(None)  # the party has left: later messages are None, too
            is_sent = received and len(received) == num_bytes
            messages.append(received if is_sent else None)
        return messages

    def send(self, message: bytes | None) -> None:
        """Sends a message to all parties; None tells them that this party has left."""
        for outbox in self.queues[self.party]:
            outbox.put(message)
