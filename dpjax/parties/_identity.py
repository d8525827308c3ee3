"""The identity of a party: its secret signing key, and the public fingerprint.

The keys for the masks are new for every job. Each is signed, so that the carrier of the
messages cannot replace it.
"""

import hashlib

from dpjax._lazy import optional

_KEY_BYTES = 32


def fingerprint(identity: bytes) -> str:
    """Returns the public name of a party: SHA-256 of its public key, 64 hex digits.

    It is not secret. The parties exchange fingerprints once, over an authentic channel:
    on paper, or by telephone.

    Args:
        identity: the secret signing key of a party, `secrets.token_bytes(32)`. The
            party uses it for all its jobs, and stores it where nobody else can read it.

    Raises:
        ValueError: If identity is not 32 bytes.
        ImportError: If the extra `parties` is not installed.

    Example:
        >>> fingerprint(bytes(32))[:16]
        '139e3940e64b5491'
    """
    return _fingerprint(_signing_key(identity).public_key().public_bytes_raw())


def signed(public_key: bytes, identity: bytes, party: int, num_parties: int) -> bytes:
    """Returns a message with a public key for one job, signed by its identity."""
    # The signature binds the key to the party's number and to the number of parties.
    key = _signing_key(identity)
    signature = key.sign(_words(public_key, party, num_parties))
    return public_key + key.public_key().public_bytes_raw() + signature


def opened(message: bytes, party: int, num_parties: int) -> tuple[bytes, str | None]:
    """Returns the public key in a message of `signed`, and its signer's fingerprint.

    `SecureSum` compares the fingerprint with the stated one. It is None if the
    signature is invalid for this party's number and the number of parties.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public_key, signer = message[:_KEY_BYTES], message[_KEY_BYTES : 2 * _KEY_BYTES]
    words = _words(public_key, party, num_parties)
    try:
        signature = message[2 * _KEY_BYTES :]
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, words)
    except (InvalidSignature, ValueError):
        return public_key, None
    return public_key, _fingerprint(signer)


def _signing_key(identity: bytes):
    """Returns the Ed25519 key that signs, from 32 secret bytes; no error shows them."""
    name = "cryptography.hazmat.primitives.asymmetric.ed25519"
    ed25519 = optional(name, "secure sums need cryptography", "parties")
    if not isinstance(identity, bytes) or len(identity) != _KEY_BYTES:
        # The message leaves out the value, which is secret.
        raise ValueError("identity must be 32 bytes, from secrets.token_bytes(32).")
    return ed25519.Ed25519PrivateKey.from_private_bytes(identity)


def _words(public_key: bytes, party: int, num_parties: int) -> bytes:
    return b"dpjax key of party %d of %d: " % (party, num_parties) + public_key


def _fingerprint(signer: bytes) -> str:
    return hashlib.sha256(signer).hexdigest()
