"""Secure sums of several parties: quantized, with noise, and masked.

The parties are honest but curious: each follows the protocol, and some may collude, by
sharing all that they know and all messages that they received. A transport delivers
every message to every party.
"""

from dpjax.parties._identity import fingerprint
from dpjax.parties._secure_sum import SecureSum
from dpjax.parties._transport import run_parties

__all__ = ["SecureSum", "fingerprint", "run_parties"]
