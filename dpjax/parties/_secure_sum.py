"""The secure sum: parties send masked vectors, and only the sum can be read."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import _validate
from dpjax._sharding import digests
from dpjax._types import PyTree, RandomBytes
from dpjax.parties import _identity
from dpjax.parties._transport import Transport

_COUNT_BYTES, _DIGEST_BYTES = 8, 32


class PartyError(RuntimeError):
    """Parties sent nothing, a wrong size or other arguments; the job has ended.

    Attributes:
        parties: their numbers.
    """

    def __init__(self, parties: list[int], message: str):
        names = ", ".join(map(str, parties))
        super().__init__(f"party {names}: {message}")
        self.parties = parties


class SecureSum:
    """One party's side of sums of integer vectors modulo 2^64.

    All parties create one at the same time, and call it in the same order. A party that
    sends nothing, or a vector of another size, is dropped permanently: the attempt is
    discarded, and the others repeat it with new masks and new contributions.

    Args:
        transport: delivers messages: `JaxTransport()` in processes joined by
            `jax.distributed`, or the argument that `run_parties` passes.
        max_colluding: C, the largest number of parties that may collude. A party knows
            its own noise, so at least one is needed to protect the parties' records
            from each other; zero protects them from outsiders only.
        max_dropouts: D, the largest number of parties that may drop out. The others
            continue without them; after one more the job ends with a `PartyError`.
        identity: this party's secret signing key, from `new_identity`; by default a new
            one for this job.
        fingerprints: the `fingerprint` of each party's identity, in the order of their
            numbers, received over an authentic channel. Without them, the carrier of
            the messages can impersonate any party, and read what the masks hide.
        test_only_random_bytes: replaces the entropy of the operating system by a known
            source, such as `np.random.default_rng(0).bytes`. Only for tests: it
            protects nobody.

    Attributes:
        transport: delivers messages.
        max_dropouts: D.
        num_secret_shares: K - C - D, the number of noise shares that are in every sum
            and unknown to all colluders.
        random_bytes: this party's own entropy, for its masks and its noise.
        live: the numbers of the parties that have not dropped out.

    Raises:
        ImportError: If the extra `parties` is not installed.
        PartyError: If a party sends no public key, or one that is not signed by the
            identity with the stated fingerprint. Only keys were sent then.
        ValueError: If C or D is negative, no share is secret, or there is not one
            fingerprint for each party, and an identity with them.

    Privacy:
        Let C parties collude. In each attempt they learn of the contributions of the
        other live parties either nothing or only their sum (see `PairwiseMasks`): if a
        message of the others is missing, its masks do not cancel, and if it arrives
        late, the sum is complete. There are at least K - C - D of these others. Each
        failed attempt drops a party, and at most D may drop, so T calls reveal at most
        T + D sums, including the last attempt of an aborted job. So contributions carry
        noise for K - C - D parties and T + D releases, fresh in each attempt.

        This needs authentic public keys of all parties. With `fingerprints` they are
        checked; otherwise the transport is trusted.

    Example:
        >>> from dpjax.parties import run_parties
        >>> def add(transport):
        ...     secure_sum = SecureSum(transport)
        ...     mine = np.array([transport.party, -1])
        ...     return secure_sum(lambda: mine, 2).tolist()
        >>> run_parties(add, 3)
        [[3, -3], [3, -3], [3, -3]]

    Reference:
        Rajkumar, Agarwal (2012), Algorithm 1, which needs such a sum. Bonawitz et al.
        (2017), Practical secure aggregation for privacy-preserving machine learning:
        there masks of dropped parties are revealed, here the attempt is repeated.
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
        rule = "given with fingerprints, one of which is its own"
        is_fine = identity is not None or fingerprints is None
        _validate.require(is_fine, "identity", identity, rule)
        identity = _identity.new_identity() if identity is None else identity
        _identity.fingerprint(identity)  # errors are raised before anything is sent
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
            ValueError: If C or D is negative, or no share is secret.

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
        """Compares arguments and exchanges numbers of records, before the first sum.

        Sends only the number and digests. C and D are compared too.

        Args:
            settings: values that must be equal for all parties, by name. Pytrees are
                compared by paths, dtypes, shapes and bits of their leaves, strings by
                their text. A function is given as `jax.jit(function).trace(shapes)`,
                and compared by its program for CPUs, with all constants, but without
                host callbacks. Another version of JAX may write another program.
            num_records: number of records of this party.

        Returns:
            The numbers of records, in the order of the parties' numbers.

        Raises:
            PartyError: If a party sends nothing, or settings differ; it names them.

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
        received = table[:, _COUNT_BYTES:].reshape(len(messages), -1, _DIGEST_BYTES)
        differs = (received != received[0]).any(axis=2)  # by party and setting
        if differs.any():
            names = [name for i, name in enumerate(own) if differs[:, i].any()]
            different = np.flatnonzero(differs.any(axis=1)).tolist()
            raise PartyError(different, f"other {', '.join(names)} than party 0")
        return [int.from_bytes(each[:_COUNT_BYTES], "little") for each in messages]

    def __call__(
        self, contribution_fn: Callable[[], np.ndarray], size: int
    ) -> np.ndarray:
        """Returns the sum of the live parties' vectors, int64, to every party.

        Args:
            contribution_fn: returns this party's int64 vector; called once for each
                attempt, so that each has fresh noise, and not after the party dropped.
            size: length of the sum; a party with a vector of another length is dropped.

        Raises:
            PartyError: If more than max_dropouts parties have dropped; also from all
                later calls.
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
    """Returns a traced function as the text of its program for CPUs."""
    if isinstance(leaf, jax.stages.Traced):
        return leaf.lower(lowering_platforms=("cpu",)).as_text()
    return leaf


def _public_keys(
    transport: Transport,
    public_key: bytes,
    identity: bytes,
    fingerprints: Sequence[str] | None,
) -> list[bytes]:
    """Exchanges the keys of a job, and checks the signature of each."""
    num_parties = transport.num_parties
    message = _identity.signed(public_key, identity, transport.party, num_parties)
    messages = _exchange_all(transport, message, _identity.SIGNED_BYTES)
    keys, signers = zip(
        *(_identity.opened(each, i, num_parties) for i, each in enumerate(messages)),
        strict=True,
    )
    stated = fingerprints or signers
    peers = [
        i
        for i, signer in enumerate(signers)
        if signer is None or signer != stated[i].lower()
    ]
    if peers:
        raise PartyError(
            peers,
            "a key that is not signed by the identity whose fingerprint was stated: "
            "somebody may have replaced it on the way",
        )
    return [*keys]


def _exchange_all(transport: Transport, message: bytes, num_bytes: int) -> list[bytes]:
    """Exchanges messages; raises `PartyError` if one is missing."""
    messages = transport.exchange(message, num_bytes)
    missing = [i for i, each in enumerate(messages) if each is None]
    if missing:
        raise PartyError(missing, f"no message of {num_bytes} bytes at the start")
    return [each for each in messages if each is not None]
