"""What a solver returns."""

import dataclasses
from functools import partial

import jax

from dpjax._types import PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "stats"],
    meta_fields=["privacy"],
)
@dataclasses.dataclass(frozen=True)
class Solution:
    """Released parameters, and what they have cost.

    A pytree: the guarantee is static metadata, so that a solver may be called under
    `jit` and `vmap`. Everything in it is released under the guarantee or public.

    Attributes:
        params: the released parameters.
        privacy: the guarantee for them. Under `vmap` over keys it is that of one run;
            releasing k runs costs k of them. A sweep over hyperparameters of which
            only the best is released is not private at the price of one run; of
            such a choice `dpjax.tuning.dp_select` states the price.
        stats: public numbers that were taken: steps, noise, sensitivity, batch size.
    """

    params: PyTree
    privacy: PrivacyGuarantee
    stats: dict[str, Scalar]
