"""Losses over preference pairs: pure functions of log-probabilities summed over action tokens, one entry per pair.

Every loss is a function of a pair's margin, the chosen side's log-ratio of policy to reference minus the rejected
side's. Variants differ in the log-ratio (summed over tokens or averaged) and in the function. Sources: DPO, Rafailov
et al. 2023 (arXiv 2305.18290) eq. 7; conservative DPO, Mitchell 2023 (ericmitchell.ai/cdpo.pdf); IPO, Azar et al. 2023
(arXiv 2310.12036) eq. 17; length-normalised DPO, Lambert et al. 2024 (Tülu 3, arXiv 2411.15124), who take the
normalisation from SimPO (Meng et al. 2024, arXiv 2405.14734) and keep the reference; the likelihood term, Pang et al.
2024 (arXiv 2404.19733) eq. 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Variant = Literal["sigmoid", "ipo", "length_normalised"]


class PairLogprobs(NamedTuple):
    """Of P pairs, each [P]: log-probabilities summed over all action tokens of a side, and how many these are.

    An episode of several samples is summed over all of them; what tools and users said is in none of the sums.
    """

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor


LogRatios = tuple[Tensor, Tensor]
"""Of the chosen and the rejected sides [P]."""


def summed_log_ratios(pairs: PairLogprobs) -> LogRatios:
    """log(policy / reference) of each whole side, in nats; at least float32."""
    return (
        _wide(pairs.chosen) - _wide(pairs.reference_chosen),
        _wide(pairs.rejected) - _wide(pairs.reference_rejected),
    )


def mean_log_ratios(pairs: PairLogprobs) -> LogRatios:
    """As `summed_log_ratios`, per action token."""
    chosen, rejected = summed_log_ratios(pairs)
    return chosen / pairs.chosen_tokens, rejected / pairs.rejected_tokens


def sigmoid(margins: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """-(1 - ε) log σ(β m) - ε log σ(-β m): ε is the share of pairs believed to be labelled the wrong way round."""
    scaled = beta * margins
    return -(1 - label_smoothing) * logsigmoid(scaled) - label_smoothing * logsigmoid(-scaled)


def squared(margins: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """(1 - ε) (m - 1/2β)² + ε (m + 1/2β)²: margins are led to (1 - 2ε)/2β and no further.

    The smoothing is not in the paper; it is the expected loss where labels are wrong with probability ε, as in
    `sigmoid`.
    """
    goal = 1 / (2 * beta)
    return (1 - label_smoothing) * (margins - goal).square() + label_smoothing * (margins + goal).square()


@dataclass(frozen=True)
class PreferenceLoss:
    """One variant: which log-ratios it compares, and its loss of their difference."""

    log_ratios: Callable[[PairLogprobs], LogRatios]
    of_margins: Callable[[Tensor, float, float], Tensor]

    def __call__(self, pairs: PairLogprobs, beta: float, label_smoothing: float = 0.0) -> Tensor:
        """Losses [P], finite in value and gradient for any log-ratios that are; `label_smoothing` is in [0, 0.5)."""
        chosen, rejected = self.log_ratios(pairs)
        return self.of_margins(chosen - rejected, beta, label_smoothing)

    def rewards(self, pairs: PairLogprobs, beta: float) -> LogRatios:
        """Implicit rewards β log(policy / reference) of both sides [P], without gradient; 0 at the reference."""
        chosen, rejected = self.log_ratios(pairs)
        return beta * chosen.detach(), beta * rejected.detach()


LOSSES: dict[Variant, PreferenceLoss] = {
    "sigmoid": PreferenceLoss(summed_log_ratios, sigmoid),
    # The paper writes probabilities of whole answers. Its authors told the maintainers of TRL that log-likelihoods are
    # to be averaged over tokens (huggingface.co/blog/pref-tuning, TRL pull request 1265): else the one target margin
    # would mean less for each token the longer the answers are.
    "ipo": PreferenceLoss(mean_log_ratios, squared),
    "length_normalised": PreferenceLoss(mean_log_ratios, sigmoid),
}


def chosen_nll(pairs: PairLogprobs) -> Tensor:
    """Negative log-likelihood per action token of the chosen sides [P], in nats."""
    return -_wide(pairs.chosen) / pairs.chosen_tokens


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
