"""The secure sum: masked vectors go out, and only their sum can be read."""

import os
from collections.abc import Callable

import numpy as np

from dpjax._types import RandomBytes
from dpjax.parties._transport import Transport


class PartyError(RuntimeError):
    """Parties sent nothing, or a message of the wrong size, and the job has ended.

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
        transport: the way to the others.
        max_dropouts: D, how many parties may drop; with one more the job ends.
        random_bytes: this party's own entropy; anything but `os.urandom` is for tests.

    Attributes:
        live: the numbers of the parties that take part.
        fingerprint: of the public keys, equal for all parties unless somebody replaced
            keys on the way.

    Raises:
        ImportError: where the extra `parties` is not installed.
        PartyError: where a party sends no public key.

    Privacy:
        Let C parties collude. In each attempt they see either nothing of what the other
        live parties contribute, or the sum of all of it (see `PairwiseMasks`): if a
        message of the others is missing, the masks with it stay, and if it only comes
        late, the sum was complete. Of these others there are at least K - C - D. Each
        failed attempt drops a party and at most D may, so T calls show at most T + D
        sums, the attempt included that ends a job. So contributions carry noise for
        K - C - D parties and T + D releases, fresh in each attempt.

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
        max_dropouts: int = 0,
        random_bytes: RandomBytes = os.urandom,
    ):
        try:
            from dpjax.parties import _masks
        except ImportError as error:
            raise ImportError(
                'Secure sums need cryptography: pip install "dpjax[parties]".'
            ) from error
        self._transport = transport
        self._masks = _masks.PairwiseMasks(transport.party, random_bytes)
        public_keys = exchange_all(
            transport, self._masks.public_key, _masks.PUBLIC_KEY_BYTES
        )
        self._masks.agree(public_keys)
        self._max_dropouts = max_dropouts
        self._attempt = 0
        self.fingerprint = self._masks.fingerprint
        self.live = list(range(transport.num_parties))

    def __call__(
        self, contribution_fn: Callable[[], np.ndarray], size: int
    ) -> np.ndarray:
        """Returns the sum of the live parties' vectors, int64, to every party.

        Args:
            contribution_fn: makes this party's int64 vector; called once an attempt,
                so that each has noise of its own. A party that dropped is not asked.
            size: the length of the sum; a vector of another length drops its party.

        Raises:
            PartyError: where more than max_dropouts parties have dropped by now.
        """
        while True:
            self._attempt += 1
            message = b""
            if self._transport.party in self.live:
                vector = np.asarray(contribution_fn(), np.int64).astype("<u8")
                mask = self._masks.mask(
                    self.live, attempt=self._attempt, size=vector.size
                )
                message = (vector.reshape(-1) + mask).tobytes()
            messages = self._transport.exchange(message, 8 * size)
            missing = [i for i in self.live if messages[i] is None]
            if not missing:
                vectors = [
                    np.frombuffer(message, "<u8")
                    for i, message in enumerate(messages)
                    if message is not None and i in self.live
                ]
                return np.asarray(np.sum(vectors, axis=0, dtype=np.uint64), np.int64)
            self.live = [i for i in self.live if i not in missing]
            if self._transport.num_parties - len(self.live) > self._max_dropouts:
                raise PartyError(
                    missing,
                    f"no vector of size {size}; the round is aborted and nothing of it "
                    f"released, since at most {self._max_dropouts} parties may drop",
                )


def exchange_all(transport: Transport, message: bytes, num_bytes: int) -> list[bytes]:
    """Exchanges messages that no party may leave out.

    Raises:
        PartyError: where one does, naming it.
    """
    messages = transport.exchange(message, num_bytes)
    missing = [i for i, each in enumerate(messages) if each is None]
    if missing:
        raise PartyError(missing, "it sent nothing at the start")
    return [each for each in messages if each is not None]
