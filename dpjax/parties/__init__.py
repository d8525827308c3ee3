"""Secure sums of several parties: quantized, with noise, and masked.

The parties are honest but curious: each follows the protocol, and some may collude, by
sharing all that they know and all messages that they received. A `Transport` delivers
every message to every party.
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
