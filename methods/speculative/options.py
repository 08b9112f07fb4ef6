"""Options of the verify rules, drafters, schedules and the beam search of this folder; imports no torch."""

import math
from dataclasses import dataclass
from typing import ClassVar

from methods.errors import InputError
from methods.options import MethodOptions, Options, check_gamma, option

DEFAULT_SCALE = 1e3


@dataclass(frozen=True, kw_only=True)
class LenienceOptions(Options):
    label: ClassVar[str] = " {lenience:g}"

    lenience: float = option(1.0, "l, 0 < l <= 1")
    as_described: bool = option(False, "the paper's printed form where it differs from what it must mean")

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise InputError(f"lenience {self.lenience!r}: expected 0 < lenience <= 1 (1 changes nothing)")


@dataclass(frozen=True, kw_only=True)
class TypicalOptions(Options):
    label: ClassVar[str] = " {epsilon:g}, {delta:g}"

    epsilon: float = option(0.09, "a draft of this target probability always stands; Medusa's posterior_threshold")
    delta: float = option(0.3, "or one of DELTA exp(-entropy); Medusa's posterior_alpha")

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if not 0 <= value <= 1:
                raise InputError(f"{name} {value!r}: expected a number from 0 to 1 (0 accepts every token the target can emit)")


@dataclass(frozen=True, kw_only=True)
class SigmoidOptions(Options):
    scale: float = option(DEFAULT_SCALE, "alpha is -SCALE, beta SCALE")
    half_logits: bool = option(False, "round both models' logits to fp16 first")


@dataclass(frozen=True, kw_only=True)
class GammaOptions(Options):
    """Of a constant schedule, of the heuristic one, which begins at ``gamma``, and of a sweep, which ends there."""

    gamma: int = option(5, "how many tokens to draft a round")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)


@dataclass(frozen=True, kw_only=True)
class OptimalOptions(Options):
    alpha: float | None = option(None, "measured acceptance rate")
    cost: float | None = option(None, "measured draft/target cost ratio")

    def __post_init__(self) -> None:
        if self.alpha is None or self.cost is None:
            raise InputError("schedule 'optimal': expected --alpha and --cost, as measured by an earlier run")


@dataclass(frozen=True, kw_only=True)
class SharedTokensOptions(Options):
    draft_tokens: int | None = option(
        None, "draft with so many shared tokens alone, those of lowest number, and the end of text (default: all)", least=1
    )


@dataclass(frozen=True, kw_only=True)
class HierarchicalOptions(Options):
    inner_gamma: int = option(2, "how many tokens the inner drafter drafts", least=1)


@dataclass(frozen=True, kw_only=True)
class SuffixOptions(Options):
    match_factor: float = option(1.0, "most drafts, in lengths of the text's end that was found again")
    min_share: float = option(0.1, "least share of what was found that goes on so")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.match_factor < math.inf:
            raise InputError(f"match_factor {self.match_factor!r}: expected a number above 0")
        if not 0 <= self.min_share <= 1:
            raise InputError(f"min_share {self.min_share!r}: expected a number from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class FirstLayersOptions(Options):
    draft_layers: int = option(2, "how many of the target's first layers draft", least=1)


@dataclass(frozen=True, kw_only=True)
class SpeculativeOptions(MethodOptions):
    takes: ClassVar[tuple[str, ...]] = ("drafter", "rule", "schedule")
    needs_drafter: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class SpeculativeBeamOptions(MethodOptions):
    takes: ClassVar[tuple[str, ...]] = ("drafter",)
    needs_drafter: ClassVar[bool] = True

    gamma: int = option(5, "how many tokens to draft a round")
    num_beams: int = option(4, "width of beam search", least=1)
    draft_beams: int | None = option(None, "draft width (default: twice the width)", least=1)

    @property
    def draft_width(self) -> int:
        return 2 * self.num_beams if self.draft_beams is None else max(self.draft_beams, self.num_beams)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)
