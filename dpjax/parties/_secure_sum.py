"""The secure sum: parties send masked integers, and only their sum can be read.

The protocol follows Rajkumar, Agarwal (2012), Algorithm 1, and Bonawitz et al. (2017),
"Practical secure aggregation". They reveal the masks of dropped parties; here the other
parties repeat the sum. The extra `parties` installs the cryptography of the masks.
"""

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpjax import _validate
from dpjax._sharding import digests
from dpjax._types import PyTree, RandomBytes
from dpjax.parties import _identity
from dpjax.parties._transport import JaxTransport, Transport

_COUNT_BYTES, _DIGEST_BYTES = 8, 32


class PartyError(RuntimeError):
    """Parties sent nothing, a wrong size or other arguments; the job has ended.

    Attributes:
        parties: the numbers of these parties.
    """

    def __init__(self, parties: list[int], *messages: str):  # one for all, or for each
        names = parties if len(messages) > 1 else [", ".join(map(str, parties))]
        texts = zip(names, messages, strict=True)
        super().__init__(" ".join(f"party {name}: {text}" for name, text in texts))
        self.parties = parties


class SecureSum:
    """One party's side of sums of integer vectors modulo 2^64.

    All create it at the same time, and call it in the same order. A party that sends
    nothing, or a vector of another size, is dropped; the others repeat the attempt.

    Args:
        transport: from `run_parties`, or an object with `party`, `num_parties` and
            `exchange(message, num_bytes)`, which sends bytes to all and returns a list
            of each party's bytes, None where their number is another. None: each
            process of `jax.distributed` is a party; on CPU without encryption.
        max_colluding: C, the most colluding parties; zero protects from outsiders only.
        max_dropouts: D, the most that may drop out; one more ends the job.
        identity: this party's secret signing key, 32 bytes; None: a new key.
        fingerprints: the `fingerprint` of each party's identity, in the order of their
            numbers, received over an authentic channel. Without them, the carrier of
            the messages can impersonate any party, and read what the masks hide.
        test_only_random_bytes: known bytes in place of entropy: it protects nobody.

    Attributes:
        num_secret_shares: K - C - D, the noise shares of a sum that no colluder knows.
        random_bytes: this party's own entropy, for its masks and its noise.
        live: the numbers of the parties that have not dropped out.

    Raises:
        ImportError: If the extra `parties` is not installed.
        RuntimeError: If a party sends no public key that the stated identity signed.
        ValueError: If C or D is negative, no share is secret, or fingerprints lack one
            of a party or the identity.

    Privacy:
        In each attempt C colluding parties learn either nothing about the contributions
        of the other live parties (at least K - C - D), or only the sum of these
        contributions (see `PairwiseMasks`): if one is missing, the masks do not cancel.
        A failed attempt drops a party, so T calls reveal at most T + D sums, including
        the last attempt of an aborted job: contributions carry noise for K - C - D
        parties and T + D releases, fresh in each attempt. All of this needs authentic
        public keys of all parties: without `fingerprints` the transport is trusted.

    Example:
        >>> from dpjax.parties import run_parties
        >>> def add(transport):
        ...     secure_sum = SecureSum(transport)
        ...     mine = np.array([transport.party, -1])
        ...     return secure_sum(lambda: mine, 2).tolist()
        >>> run_parties(add, 3)
        [[3, -3], [3, -3], [3, -3]]

    Reference:
        Rajkumar, Agarwal (2012), Algorithm 1; Bonawitz et al. (2017).
    """

    def __init__(
        self,
        transport: Transport | None = None,
        *,
        max_colluding: int = 1,
        max_dropouts: int = 0,
        identity: bytes | None = None,
        fingerprints: Sequence[str] | None = None,
        test_only_random_bytes: RandomBytes | None = None,
    ):
        """Exchanges signed public keys with all parties. Arguments: see the class."""
        rule = "given with fingerprints, which hold the fingerprint of this identity"
        is_fine = identity is not None or fingerprints is None
        _validate.require(is_fine, "identity", identity, rule)
        identity = os.urandom(32) if identity is None else identity
        transport = JaxTransport() if transport is None else transport
        _identity.fingerprint(identity)  # errors are raised before anything is sent
        sizes = transport.num_parties, max_colluding, max_dropouts
        self.num_secret_shares = self.count_secret_shares(*sizes)
        self.transport = transport
        self.max_dropouts = max_dropouts
        self.random_bytes = test_only_random_bytes or os.urandom
        self._max_colluding = max_colluding
        self._masks = PairwiseMasks(transport.party, self.random_bytes)
        num_parties = transport.num_parties
        given = fingerprints if isinstance(fingerprints, list | tuple) else ()
        is_fine = [isinstance(x, str) and len(x) for x in given] == [64] * num_parties
        rule = f"a list of length {num_parties}: 64 hex digits of each party, in order"
        is_fine = is_fine or fingerprints is None
        _validate.require(is_fine, "fingerprints", fingerprints, rule)
        # All keys of the job are exchanged, and the signature of each is checked.
        place = transport.party, num_parties
        message = _identity.signed(self._masks.public_key, identity, *place)
        messages = _exchange_all(transport, message)
        opened = [_identity.opened(x, i, num_parties) for i, x in enumerate(messages)]
        keys, signers = zip(*opened, strict=True)
        stated = [x.lower() for x in fingerprints] if fingerprints else signers
        impostors = [i for i, x in enumerate(signers) if x is None or x != stated[i]]
        if impostors:
            raise PartyError(
                impostors,
                "its key is not signed by the identity whose fingerprint was stated: "
                "somebody may have replaced it on the way",
            )
        self._masks.agree(keys)
        self._attempt = 0
        self.live = list(range(num_parties))

    @staticmethod
    def count_secret_shares(
        num_parties: int, max_colluding: int, max_dropouts: int
    ) -> int:
        """Returns K - C - D, the number of noise shares that no colluder knows.

        K, C and D are the arguments. The noise of a sum is calibrated to these shares.

        Example:
            >>> SecureSum.count_secret_shares(4, max_colluding=1, max_dropouts=1)
            2
        """
        threats = {"max_colluding": max_colluding, "max_dropouts": max_dropouts}
        for name, value in threats.items():
            is_count = isinstance(value, int) and value >= 0
            _validate.require(is_count, name, value, "an integer, 0 or above")
        shares = num_parties - max_colluding - max_dropouts
        rule = f"below {num_parties}, so that a party adds noise that no colluder knows"
        _validate.require(shares >= 1, " + ".join(threats), num_parties - shares, rule)
        return shares

    def agree(self, settings: Mapping[str, PyTree], num_records: int) -> list[int]:
        """Compares arguments and exchanges numbers of records, before the first sum.

        Sends only that number and digests, also of max_colluding and max_dropouts.

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
            RuntimeError: If a party sends nothing, or settings differ; it names them.

        Example:
            >>> from dpjax.parties import run_parties
            >>> def train(transport):
            ...     return SecureSum(transport).agree({"epsilon": 1.0}, 100)
            >>> run_parties(train, 2)
            [[100, 100], [100, 100]]
        """

        def program(leaf: Any) -> Any:  # a traced function is compared by its text
            if isinstance(leaf, jax.stages.Traced):
                return leaf.lower(lowering_platforms=("cpu",)).as_text()
            return leaf

        limits = {"max_colluding": self._max_colluding}
        compared = {**settings, **limits, "max_dropouts": self.max_dropouts}
        named = {name: (name, jax.tree.map(program, x)) for name, x in compared.items()}
        own = digests(named, ())
        message = num_records.to_bytes(_COUNT_BYTES, "little")
        message += bytes.fromhex("".join(own.values()))
        messages = _exchange_all(self.transport, message)
        table = np.frombuffer(b"".join(messages), np.uint8).reshape(len(messages), -1)
        received = table[:, _COUNT_BYTES:].reshape(len(messages), -1, _DIGEST_BYTES)
        differs = (received != received[0]).any(axis=2)  # by party and setting
        if differs.any():
            different = np.flatnonzero(differs.any(axis=1)).tolist()
            names = [", ".join(itertools.compress(own, differs[i])) for i in different]
            rule = "must be equal for all parties, got another than party 0's."
            raise PartyError(different, *(f"{name} {rule}" for name in names))
        return [int.from_bytes(each[:_COUNT_BYTES], "little") for each in messages]

    def __call__(
        self, contribution_fn: Callable[[], np.ndarray], size: int
    ) -> np.ndarray:
        """Returns the sum of the live parties' vectors, int64, to every party.

        Args:
            contribution_fn: returns this party's int64 vector. It is called once for
                each attempt, so that each has fresh noise, until the party is dropped.
            size: length of the sum; a party with a vector of another length is dropped.

        Raises:
            RuntimeError: If more than max_dropouts parties have dropped out; all later
                calls raise it too.
        """
        num_parties = self.transport.num_parties
        missing = [i for i in range(num_parties) if i not in self.live]
        while num_parties - len(self.live) <= self.max_dropouts:
            self._attempt += 1
            message = b""
            if self.transport.party in self.live:
                given = _validate.numbers(np.asarray(contribution_fn()), "contribution")
                vector = given.astype(np.int64).astype("<u8")
                how = {"attempt": self._attempt, "size": vector.size}
                mask = self._masks.mask(self.live, **how)
                message = (vector.reshape(-1) + mask).tobytes()
            messages = self.transport.exchange(message, 8 * size)
            missing = [i for i in self.live if messages[i] is None]
            # Masks cancel only if every live party has sent its vector.
            if not missing:
                vectors = [np.frombuffer(messages[i] or b"", "<u8") for i in self.live]
                return np.asarray(np.sum(vectors, axis=0, dtype=np.uint64), np.int64)
            self.live = [i for i in self.live if i not in missing]
        raise PartyError(
            missing,
            f"sent no vector of size {size}; the round is aborted without a release, "
            f"because dropouts exceed max_dropouts = {self.max_dropouts}",
        )


def _exchange_all(transport: Transport, message: bytes) -> list[bytes]:
    """Returns all parties' messages, of equal length, or raises if one is missing."""
    messages = transport.exchange(message, len(message))
    if missing := [i for i, each in enumerate(messages) if each is None]:
        text = f"sent no message of {len(message)} bytes at the start"
        raise PartyError(missing, text)
    return [each for each in messages if each is not None]


class PairwiseMasks:
    """One party's masks modulo 2^64, which cancel in the sum over the parties.

    In each pair of parties, one adds and the other subtracts a shared stream, which
    comes from X25519 key agreement, HKDF-SHA256 and ChaCha20 (Bonawitz et al. 2017,
    Section 4). The secret key comes from the party's entropy, and stays in this object.

    Privacy: let some parties collude. To them, the masks that the other parties share
    among themselves look uniform, under the usual assumptions: the masked vectors of
    these parties reveal only their sum modulo 2^64, and nothing while one of the
    vectors is missing. This needs a new attempt number for each vector, and authentic
    public keys: someone who replaces them can read everything. `SecureSum` prevents
    this with fingerprints.
    """

    def __init__(self, party: int, random_bytes: RandomBytes = os.urandom):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._party = party
        self._secret = X25519PrivateKey.from_private_bytes(random_bytes(32))
        self._keys: list[bytes] = []
        self.public_key: bytes = self._secret.public_key().public_bytes_raw()

    def agree(self, public_keys: Sequence[bytes]) -> None:
        """Derives the secret key shared with each party, from all public keys."""
        # Keys are in the order of the parties' numbers; `mask` needs the secret keys.
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        salt = hashlib.sha256(b"".join(public_keys)).digest()
        for party, public_key in enumerate(public_keys):
            try:
                peer = X25519PublicKey.from_public_bytes(public_key)
                shared = self._secret.exchange(peer)
            except ValueError:
                why = "its public key is refused; its program is altered or not dpjax"
                raise PartyError([party], why) from None
            info = b"dpjax pairwise mask %d %d" % tuple(sorted((party, self._party)))
            self._keys.append(HKDF(SHA256(), 32, salt, info).derive(shared))

    def mask(self, parties: Collection[int], *, attempt: int, size: int) -> np.ndarray:
        """Returns this party's mask, uint64 (size,); the masks of `parties` sum to 0.

        Privacy: an attempt is a number below 2^64, used for one vector only.
        """
        total = np.zeros(size, np.uint64)
        for other in parties:
            if other != self._party:
                stream = _stream(self._keys[other], attempt, size)
                total = total + stream if self._party < other else total - stream
        return total


def _stream(key: bytes, attempt: int, size: int) -> np.ndarray:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    # ChaCha20 counts its blocks in the first half of these bytes.
    nonce = bytes(8) + attempt.to_bytes(8, "little")
    encryptor = Cipher(ChaCha20(key, nonce), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), "<u8")


@dataclass(frozen=True)
class Grid:
    """A rounding of real numbers to integer numbers of steps, for `SecureSum`."""

    step: float  # a power of two
    bound: float  # values are clipped to [-bound, bound]

    def __post_init__(self) -> None:
        """Raises `ValueError` unless 2^k = step > 0 and 0 < bound <= 2^52 steps."""
        _validate.positive(step=self.step, bound=self.bound)
        is_power = math.frexp(self.step)[0] == 0.5
        _validate.require(is_power, "step", self.step, "a power of two")
        rule = (
            f"at most 2^52 steps of {self.step:g}: there are too many records for the "
            "noise, or the noise is too small"
        )
        _validate.require(self.bound <= 2**52 * self.step, "bound", self.bound, rule)

    @classmethod
    def of(cls, step: float, *, bound: float) -> "Grid":
        """Returns a grid of the largest power of two that is not above a step."""
        return cls(math.ldexp(0.5, math.frexp(step)[1]), bound)

    def to_integers(self, values: np.ndarray) -> np.ndarray:
        """Rounds values to steps; NaN is 0, and values beyond the bound are clipped."""
        values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
        values = np.clip(values, -self.bound, self.bound)
        return np.rint(values / self.step).astype(np.int64)

    def to_reals(self, integers: np.ndarray) -> np.ndarray:
        """Returns the float64 values of integers."""
        return integers * self.step

    def sensitivity(self, l2_sensitivity: float, num_coordinates: int) -> float:
        """Returns the l2 sensitivity after rounding, in steps.

        Rounding moves a coordinate by at most half a step, and the float64 product
        before it by 2^-53 of 2^52 steps, another half: one step for each of two
        neighbors, which adds 2 sqrt(d) in d coordinates. Clipping adds no distance.
        """
        return l2_sensitivity / self.step + 2 * math.sqrt(num_coordinates)
