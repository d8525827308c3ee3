"""Pairwise masks: of every two parties, one adds and one subtracts a shared stream.

Only this file and `_identity` need the extra `parties`, for cryptography.
"""

import hashlib
import os
from collections.abc import Collection, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpjax._types import RandomBytes


class PairwiseMasks:
    """One party's masks modulo 2^64, which cancel in the sum over the parties.

    The streams come from X25519 key agreement, HKDF-SHA256 and ChaCha20. The secret key
    is derived from the party's own entropy, and never leaves this object.

    Args:
        party: this party's number, from 0 up.
        random_bytes: its entropy; anything but `os.urandom` is for tests.

    Privacy:
        Let some parties collude. To them, the masks that the others share among
        themselves look uniform, under the usual assumptions on X25519, HKDF and
        ChaCha20: so the masked vectors of the others reveal only their sum modulo 2^64,
        and nothing while one of these vectors is missing. This needs a new attempt
        number for each vector, and authentic public keys: someone who replaces them can
        read everything. `SecureSum` prevents that with fingerprints.

    Example:
        >>> masks = [PairwiseMasks(party) for party in range(3)]
        >>> public_keys = [each.public_key for each in masks]
        >>> for each in masks:
        ...     each.agree(public_keys)
        >>> print(sum(each.mask([0, 1, 2], attempt=1, size=4) for each in masks))
        [0 0 0 0]

    Reference:
        Bonawitz et al. (2017), Practical secure aggregation for privacy-preserving
        machine learning, Section 4, "masking with one-time pads".
    """

    def __init__(self, party: int, random_bytes: RandomBytes = os.urandom):
        self._party = party
        self._secret = X25519PrivateKey.from_private_bytes(random_bytes(32))
        self._keys: list[bytes] = []
        self.public_key: bytes = self._secret.public_key().public_bytes_raw()

    def agree(self, public_keys: Sequence[bytes]) -> None:
        """Takes the public keys of all parties, in the order of their numbers.

        Raises:
            ValueError: If a key is invalid; it names the party.
        """
        salt = hashlib.sha256(b"".join(public_keys)).digest()
        for party, public_key in enumerate(public_keys):
            try:
                peer = X25519PublicKey.from_public_bytes(public_key)
                shared = self._secret.exchange(peer)
            except ValueError as error:
                raise ValueError(f"public key of party {party}: {error}") from None
            pair = sorted((party, self._party))
            derivation = HKDF(
                algorithm=SHA256(),
                length=32,
                salt=salt,
                info=b"dpjax pairwise mask %d %d" % (pair[0], pair[1]),
            )
            self._keys.append(derivation.derive(shared))

    def mask(self, parties: Collection[int], *, attempt: int, size: int) -> np.ndarray:
        """Returns the mask of this party among the participants: a uint64 vector.

        Args:
            parties: the numbers of the participants, including this party.
            attempt: a number below 2^64, used for one vector only.
            size: length of the vector.
        """
        total = np.zeros(size, np.uint64)
        for other in parties:
            if other != self._party:
                stream = _stream(self._keys[other], attempt, size)
                total = total + stream if self._party < other else total - stream
        return total


def _stream(key: bytes, attempt: int, size: int) -> np.ndarray:
    # ChaCha20 counts its blocks in the first half of these bytes.
    nonce = bytes(8) + attempt.to_bytes(8, "little")
    encryptor = Cipher(ChaCha20(key, nonce), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), "<u8")
