"""Several parties and one sum: quantised, noised and masked, so that no part shows.

The parties are honest but curious: each follows the protocol, and some may put together
all that they know and all messages that they saw. Messages travel over a `Transport`,
which brings every message to every party.
"""

from dpjax.parties._identity import fingerprint, new_identity
from dpjax.parties._secure_sum import PartyError, SecureSum
from dpjax.parties._transport import JaxTransport, Transport, run_parties

__all__ = [
    "JaxTransport",
    "PartyError",
    "SecureSum",
    "Transport",
    "fingerprint",
    "new_identity",
    "run_parties",
]
