"""The batches of a run, and everything else that its epsilon depends on.

A run with correlated noise costs as much as one Gaussian release of C g, or, if the
steps of a record are at least as far apart as there are bands, as the Poisson-sampled
steps of one record: `docs/privacy/proofs/composition.md`, 3.9. No gain is claimed if
these steps are closer, because known estimates hold only with a confidence
(Choquette-Choo, Ganesh, Steinke, Thakurta 2024), or for groups, because two records of
a group may enter steps that are closer.
"""

import dataclasses
import math
from typing import Any

from dpjax import _validate
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation, NoiseName


@dataclasses.dataclass(frozen=True, repr=False)
class Sampling:
    """The batches of a run, and everything else that its epsilon depends on.

    A batching returns its `Sampling`: `Poisson(256).sampling(num_samples, num_steps)`.
    `Sampling(num_steps)` alone is that many Gaussian releases of all records; other
    fields describe other batches:

    * `sampling_prob` < 1: a record enters each batch with that probability.
    * `num_samples` and `batch_size`: batches of fixed size, drawn without replacement
      anew in each step. Replace-one only.
    * `num_bins`: a record enters one of every `num_bins` steps, chosen uniformly,
      independently and anew; `batching.BallsInBins` compares its cost.
    * `num_steps` = 1: disjoint batches, each used once: a record enters one of them.

    Attributes:
        num_steps: number of noisy steps T; each may depend on the earlier ones.
        sampling_prob: the probability that a record enters a step, in (0, 1]; with a
            strategy, that it enters each of its own steps.
        num_samples: public number of records.
        batch_size: number of records in every batch.
        num_bins: number of steps of an epoch; the last epoch may be shorter.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.
        noise: the `noise` of an estimator. For other noise than "gaussian" a multiplier
            z means that a step is 1 / (2 z^2)-zCDP, as Gaussian noise of z is.
        other_multiplier: noise multiplier of another Gaussian release, on all records,
            that shares the budget, such as `stats["noise_multiplier"]` of
            `dp_linear_model`; several releases count as one with multiplier (sum of
            z^-2)^(-1/2). inf: no other release.
        group_size: the most records that change at once, such as all of one person.
            Under ADD_OR_REMOVE_ONE they are added or removed together. The multiplier
            still refers to one record. Each record is drawn by itself.
        strategy: a strategy of `dpjax.mechanisms`, such as `BandedToeplitz`, for
            correlated noise of at least `num_steps` steps. None: independent noise.
        max_participations: with a strategy, the most steps that a record may enter.
        min_separation: with a strategy, the least distance between two of these steps.

    Raises:
        ValueError: If a field is out of range, two kinds of batches are described, or
            no gain from sampling is proved: for batches of fixed size except under
            REPLACE_ONE, for noise that is not Gaussian, for a strategy with more bands
            than min_separation, and for groups with bins, a batch size or a strategy.

    Example:
        >>> Sampling(num_steps=100)
        Sampling(num_steps=100)
        >>> from dpjax.batching import Poisson
        >>> Poisson(256).sampling(num_samples=25_600, num_steps=100, group_size=2)
        Sampling(num_steps=100, sampling_prob=0.01, group_size=2)
    """

    num_steps: int
    _: dataclasses.KW_ONLY
    sampling_prob: float = 1.0
    num_samples: int | None = None
    batch_size: int | None = None
    num_bins: int | None = None
    relation: NeighboringRelation = REPLACE_ONE
    noise: NoiseName = "gaussian"
    other_multiplier: float = math.inf
    group_size: int = 1
    strategy: Any = None  # of `mechanisms`, which accounting does not import
    max_participations: int = 1
    min_separation: int = 1

    def __post_init__(self):
        """Raises `ValueError` unless a cost is proved for these fields together."""
        _validate.choice(NoiseName, noise=self.noise)
        names = ["num_steps", "group_size", "max_participations", "min_separation"]
        optional = ("num_samples", "batch_size", "num_bins")
        names += [name for name in optional if getattr(self, name) is not None]
        _validate.count(**{name: getattr(self, name) for name in names})
        _validate.within(0.0, math.inf, other_multiplier=self.other_multiplier)
        num_samples, batch_size = self.num_samples, self.batch_size
        sized, bins = batch_size is not None, self.num_bins is not None
        # Fields are rejected together unless a cost of such sampling is proved.
        self._require(sampling_prob=(0 < self.sampling_prob <= 1, "in (0, 1]"))
        poisson, added = self.sampling_prob < 1, self.relation is ADD_OR_REMOVE_ONE
        known = self.relation is REPLACE_ONE or (added and not sized)
        same = self.noise == "gaussian" or not (poisson or sized or bins)
        group = self.group_size == 1 or not (sized or bins)
        both = "None with sampling_prob < 1 or batch_size: batches are drawn in one way"
        gain = "gaussian with sampled batches: no gain is proved for other noise"
        single = "1 with num_bins or batch_size, whose gain is proved for one record: "
        self._require(
            relation=(known, "REPLACE_ONE, or without batch_size ADD_OR_REMOVE_ONE"),
            num_samples=(not sized or num_samples is not None, "given with batch_size"),
            batch_size=(sized or num_samples is None, "given with num_samples"),
            num_bins=(not (bins and (poisson or sized)), both),
            sampling_prob=(not (sized and poisson), "1 with a batch_size"),
            noise=(same, gain),
            group_size=(group, single + "for groups use PrivacyGuarantee.for_groups"),
        )
        if batch_size is not None and num_samples is not None:
            is_fine = batch_size <= num_samples
            self._require(batch_size=(is_fine, f"at most num_samples = {num_samples}"))
        strategy = self.strategy
        if strategy is None:
            most, apart = self.max_participations, self.min_separation
            self._require(
                max_participations=(most == 1, "1 without a strategy"),
                min_separation=(apart == 1, "1 without a strategy"),
            )
            return
        # No privacy cost is proved for the following fields with a strategy.
        has_both = hasattr(strategy, "sensitivity") and hasattr(strategy, "num_bands")
        example = "one of dpjax.mechanisms, such as BandedToeplitz.square_root(...)"
        self._require(strategy=(has_both, example))
        rule, bands = "left at its default with a strategy", strategy.num_bands
        is_short = self.num_steps <= strategy.num_steps
        self._require(
            num_samples=(num_samples is None, rule),
            num_bins=(not bins, rule),
            noise=(self.noise == "gaussian", rule),
            other_multiplier=(self.other_multiplier == math.inf, rule),
            num_steps=(is_short, f"at most {strategy.num_steps}, as in {strategy}"),
            group_size=(
                self.group_size == 1 or not poisson,
                "1 with a strategy and sampling_prob < 1: no cost is proved for groups",
            ),
            min_separation=(
                bands <= self.min_separation or not poisson,
                f"at least the {bands} bands of {strategy} with sampling_prob = "
                f"{self.sampling_prob}: use fewer bands, longer cycles of "
                "CyclicPoisson, or sampling_prob = 1 without a gain from sampling",
            ),
        )

    def _require(self, **rules: tuple[bool, str]) -> None:
        for name, (is_fine, rule) in rules.items():
            _validate.require(is_fine, name, getattr(self, name), rule)

    def __repr__(self) -> str:
        given = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Sampling({', '.join(given)})"


def independent(sampling: Sampling) -> tuple[Sampling, float]:
    """Returns an equally costly run of independent noise, and a ratio of multipliers.

    The noise multiplier of `sampling` is the ratio times that of the returned run,
    which accountants read: it has no strategy (correlated noise), and batches that hold
    all records are described as full batches.
    """
    rule = "a Sampling, as batching.sampling(num_samples, num_steps) returns"
    _validate.require(isinstance(sampling, Sampling), "sampling", sampling, rule)
    # Batches of fixed size that hold all records, and a single bin, are full batches.
    is_whole = sampling.batch_size == sampling.num_samples
    run = dataclasses.replace(
        sampling,
        sampling_prob=float(sampling.sampling_prob),
        other_multiplier=float(sampling.other_multiplier),
        num_samples=None if is_whole else sampling.num_samples,
        batch_size=None if is_whole else sampling.batch_size,
        num_bins=None if sampling.num_bins == 1 else sampling.num_bins,
        strategy=None,
        max_participations=1,
        min_separation=1,
    )
    if sampling.strategy is None:
        return run, 1.0
    most, apart = sampling.max_participations, sampling.min_separation
    # Without sampling the run is one release, of the strategy's matrix times all means;
    # with sampling it costs as much as the steps that a record may enter.
    if sampling.sampling_prob == 1:
        scale = sampling.strategy.sensitivity(
            max_participations=most, min_separation=apart
        )
        return dataclasses.replace(run, num_steps=1), scale
    num_turns = min(most, -(-sampling.num_steps // apart))
    scale = sampling.strategy.sensitivity()
    return dataclasses.replace(run, num_steps=num_turns), scale
