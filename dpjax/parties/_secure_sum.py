"""The secure sum: masked vectors go out, and only their sum can be read."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import _validate
from dpjax._processes import digests
from dpjax._types import PyTree, RandomBytes
from dpjax.parties import _identity
from dpjax.parties._transport import Transport

_COUNT_BYTES, _DIGEST_BYTES = 8, 32


class PartyError(RuntimeError):
    """Parties sent nothing, the wrong size or other arguments, and the job has ended.

    Attributes:
        parties: their numbers.
    """

    def __init__(self, parties: list[int], message: str):
        names = ", ".join(map(str, parties))
        super().__init__(f"party {names}: {message}")
        self.parties = parties


class SecureSum:
    """One party's side of sums of integer vectors modulo 2^64.

    All parties make theirs at the same time, and call it in step. A party that sends
    nothing, or a vector of another size, drops out for good: the attempt counts for
    nothing, and all others make it anew, with new masks and new contributions.

    Args:
        transport: the way to the others: `JaxTransport()` in processes joined by
            `jax.distributed`, or what `run_parties` hands out.
        max_colluding: C, how many parties may put together all that they know. A party
            knows its own noise, so one is the least that protects the parties' records
            from each other; zero protects them from outsiders alone.
        max_dropouts: D, how many parties may drop out. The others go on without them;
            with one more the job ends in a `PartyError`.
        identity: this party's secret signing key, from `new_identity`; by default one
            for this job alone.
        fingerprints: of all parties' identities, by `fingerprint`, in the order of
            their numbers, as each party got them from the others over a channel that
            nobody else can speak on. Without them whoever carries the messages can
            pass for any party, and read what the masks hide.
        test_only_random_bytes: replaces the entropy of the operating system by
            something known, such as `np.random.default_rng(0).bytes`. For tests: it
            protects nobody.

    Attributes:
        transport: the way to the others.
        max_dropouts: D.
        num_secret_shares: K - C - D, how many noise shares are in every sum and known
            to no colluder.
        random_bytes: this party's own entropy, for its masks and its noise.
        live: the numbers of the parties that take part.

    Raises:
        ImportError: where the extra `parties` is not installed.
        PartyError: where a party sends no public key, or one that is not signed by the
            identity whose fingerprint was stated. Nothing was sent but keys.
        ValueError: where C or D is negative, no share is secret, or fingerprints are
            not one a party, with an identity of one's own.

    Privacy:
        Let C parties collude. In each attempt they see either nothing of what the other
        live parties contribute, or the sum of all of it (see `PairwiseMasks`): if a
        message of the others is missing, the masks with it stay, and if it only comes
        late, the sum was complete. Of these others there are at least K - C - D. Each
        failed attempt drops a party and at most D may, so T calls show at most T + D
        sums, the attempt included that ends a job. So contributions carry noise for
        K - C - D parties and T + D releases, fresh in each attempt.

        All of this needs that each party holds the others' own public keys. Where
        `fingerprints` are stated it is checked; else the transport is trusted for it.

    Example:
        >>> from dpjax.parties import run_parties
        >>> def add(transport):
        ...     secure_sum = SecureSum(transport)
        ...     mine = np.array([transport.party, -1])
        ...     return secure_sum(lambda: mine, 2).tolist()
        >>> run_parties(add, 3)
        [[3, -3], [3, -3], [3, -3]]

    Reference:
        Rajkumar, Agarwal (2012), Algorithm 1, which asks for such a sum. Bonawitz et
        al. (2017), Practical secure aggregation for privacy-preserving machine
        learning: there masks of dropped parties are revealed, here the round restarts.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        max_colluding: int = 1,
        max_dropouts: int = 0,
        identity: bytes | None = None,
        fingerprints: Sequence[str] | None = None,
        test_only_random_bytes: RandomBytes | None = None,
    ):
        _validate.require(
            identity is not None or fingerprints is None,
            "identity",
            identity,
            "given with fingerprints, one of which is its own",
        )
        identity = _identity.new_identity() if identity is None else identity
        _identity.fingerprint(identity)  # what is wrong is said before anything is sent
        from dpjax.parties import _masks

        self.num_secret_shares = self.count_secret_shares(
            transport.num_parties, max_colluding, max_dropouts
        )
        self.transport = transport
        self.max_dropouts = max_dropouts
        self.random_bytes = test_only_random_bytes or os.urandom
        self._max_colluding = max_colluding
        self._masks = _masks.PairwiseMasks(transport.party, self.random_bytes)
        if fingerprints is not None:
            _identity.check_fingerprints(fingerprints, transport.num_parties)
        self._masks.agree(
            _public_keys(transport, self._masks.public_key, identity, fingerprints)
        )
        self._attempt = 0
        self.live = list(range(transport.num_parties))

    @staticmethod
    def count_secret_shares(
        num_parties: int, max_colluding: int, max_dropouts: int
    ) -> int:
        """Returns K - C - D.

        Raises:
            ValueError: where C or D is negative, or no share is secret.

        Example:
            >>> SecureSum.count_secret_shares(4, max_colluding=1, max_dropouts=1)
            2
        """
        threats = {"max_colluding": max_colluding, "max_dropouts": max_dropouts}
        for name, value in threats.items():
            is_count = isinstance(value, int) and value >= 0
            _validate.require(is_count, name, value, "an integer, 0 or above")
        shares = num_parties - max_colluding - max_dropouts
        _validate.require(
            shares >= 1,
            "max_colluding + max_dropouts",
            max_colluding + max_dropouts,
            f"less than the number of parties, {num_parties}: someone must add noise "
            "that no colluder knows",
        )
        return shares

    def agree(self, settings: Mapping[str, PyTree], num_records: int) -> list[int]:
        """Compares arguments and tells numbers of records, before there is any sum.

        Nothing is sent but that number and digests. C and D are compared, too.

        Args:
            settings: what must be the same for all, by name. The leaves of a pytree
                count by their paths, types, shapes and bits, strings by their text. A
                function is given as `jax.jit(function).trace(shapes)`, and counts by
                its program for CPUs, with all constants. What a program calls on the
                host is not compared. Another version of JAX may write another program.
            num_records: of this party.

        Returns:
            The numbers of records, in the order of the parties' numbers.

        Raises:
            PartyError: where a party sends nothing, or settings differ; it names them.

        Example:
            >>> from dpjax.parties import run_parties
            >>> def train(transport):
            ...     return SecureSum(transport).agree({"epsilon": 1.0}, 100)
            >>> run_parties(train, 2)
            [[100, 100], [100, 100]]
        """
        compared = {
            **settings,
            "max_colluding": self._max_colluding,
            "max_dropouts": self.max_dropouts,
        }
        own = digests(
            {name: (name, jax.tree.map(_program, x)) for name, x in compared.items()},
            (),
        )
        message = num_records.to_bytes(_COUNT_BYTES, "little")
        message += bytes.fromhex("".join(own.values()))
        messages = _exchange_all(self.transport, message, len(message))
        table = np.frombuffer(b"".join(messages), np.uint8).reshape(len(messages), -1)
        found = table[:, _COUNT_BYTES:].reshape(len(messages), -1, _DIGEST_BYTES)
        differs = (found != found[0]).any(axis=2)  # by party and setting
        if differs.any():
            names = [name for i, name in enumerate(own) if differs[:, i].any()]
            others = np.flatnonzero(differs.any(axis=1)).tolist()
            raise PartyError(others, f"other {', '.join(names)} than party 0")
        return [int.from_bytes(each[:_COUNT_BYTES], "little") for each in messages]

    def __call__(
        self, contribution_fn: Callable[[], np.ndarray], size: int
    ) -> np.ndarray:
        """Returns the sum of the live parties' vectors, int64, to every party.

        Args:
            contribution_fn: makes this party's int64 vector; called once an attempt,
                so that each has noise of its own. A party that dropped is not asked.
            size: the length of the sum; a vector of another length drops its party.

        Raises:
            PartyError: where more than max_dropouts parties have dropped by now; so do
                all later calls.
        """
        num_parties = self.transport.num_parties
        missing = [i for i in range(num_parties) if i not in self.live]
        while num_parties - len(self.live) <= self.max_dropouts:
            self._attempt += 1
            message = b""
            if self.transport.party in self.live:
                vector = np.asarray(contribution_fn(), np.int64).astype("<u8")
                mask = self._masks.mask(
                    self.live, attempt=self._attempt, size=vector.size
                )
                message = (vector.reshape(-1) + mask).tobytes()
            messages = self.transport.exchange(message, 8 * size)
            missing = [i for i in self.live if messages[i] is None]
            if not missing:
                vectors = [
                    np.frombuffer(message, "<u8")
                    for i, message in enumerate(messages)
                    if message is not None and i in self.live
                ]
                return np.asarray(np.sum(vectors, axis=0, dtype=np.uint64), np.int64)
            self.live = [i for i in self.live if i not in missing]
        raise PartyError(
            missing,
            f"no vector of size {size}; the round is aborted and nothing of it "
            f"released, since at most {self.max_dropouts} parties may drop",
        )


def _program(leaf: Any) -> Any:
    """A traced function as the text of its program, whatever the parties run it on."""
    if isinstance(leaf, jax.stages.Traced):
        return leaf.lower(lowering_platforms=("cpu",)).as_text()
    return leaf


def _public_keys(
    transport: Transport,
    public_key: bytes,
    identity: bytes,
    fingerprints: Sequence[str] | None,
) -> list[bytes]:
    """Exchanges the keys of a job, and requires that each is of the party it says."""
    num_parties = transport.num_parties
    message = _identity.signed(public_key, identity, transport.party, num_parties)
    messages = _exchange_all(transport, message, _identity.SIGNED_BYTES)
    keys, signers = zip(
        *(_identity.opened(each, i, num_parties) for i, each in enumerate(messages)),
        strict=True,
    )
    stated = fingerprints or signers
    others = [
        i
        for i, signer in enumerate(signers)
        if signer is None or signer != stated[i].lower()
    ]
    if others:
        raise PartyError(
            others,
            "a key that is not signed by the identity whose fingerprint was stated: "
            "somebody may have replaced it on the way",
        )
    return [*keys]


def _exchange_all(transport: Transport, message: bytes, num_bytes: int) -> list[bytes]:
    """Exchanges messages that no party may leave out."""
    messages = transport.exchange(message, num_bytes)
    missing = [i for i, each in enumerate(messages) if each is None]
    if missing:
        raise PartyError(missing, f"no message of {num_bytes} bytes at the start")
    return [each for each in messages if each is not None]
