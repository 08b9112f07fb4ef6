"""Options of SpecDec's rules and drafters; imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from kernels.inputs import SamplingSpec
from methods.errors import InputError
from methods.options import MethodOptions, Options, check_gamma, option

CAPS, SCORES, ENCODERS = ("released", "printed"), ("verifier", "as_described"), ("own", "shared", "concurrent")
CAP = "gamma + 1 tokens a round (released) or gamma (printed)"


def check_greedy(sampling: SamplingSpec) -> None:
    if not sampling.greedy:
        raise InputError(
            f"temperature {sampling.temperature!r}: rules top-1 and top-beta are defined at temperature 0 only; "
            "use rule speculative-sampling"
        )


@dataclass(frozen=True, kw_only=True)
class TopOneOptions(Options):
    cap: str = option("released", CAP, CAPS)

    def check(self, *, sampling: SamplingSpec, device: str, num_threads: int | None) -> None:
        check_greedy(sampling)


@dataclass(frozen=True, kw_only=True)
class TopBetaOptions(TopOneOptions):
    label: ClassVar[str] = " beta {beta} tau {tau:g}"

    beta: int = option(3, "among the target's best BETA")
    tau: float = option(1.0, "within TAU of its best log-probability")
    score: str = option("verifier", "verifier, or as_described (the drafter's, as printed)", SCORES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise InputError(f"beta {self.beta!r}: expected an integer >= 1 (1 is the strict rule)")
        if not 0 <= self.tau < float("inf"):
            raise InputError(f"tau {self.tau!r}: expected a finite number >= 0 (0 is the strict rule)")


@dataclass(frozen=True, kw_only=True)
class BlockOptions(Options):
    encoder: str = option("own", "own, shared (the target's) or concurrent (beside it)", ENCODERS)

    def check(self, *, sampling: SamplingSpec, device: str, num_threads: int | None) -> None:
        if self.encoder == "concurrent" and device == "cpu" and num_threads != 1:
            raise InputError(
                f"encoder 'concurrent': num_threads {num_threads or 'of all cores'}; on a CPU expected 1: two encoders "
                "with several threads each keep taking the cores from one another: use one thread (--threads 1)"
            )


@dataclass(frozen=True, kw_only=True)
class DrafterAloneOptions(MethodOptions):
    takes: ClassVar[tuple[str, ...]] = ("drafter",)
    needs_drafter: ClassVar[bool] = True

    gamma: int = option(5, "how many tokens to draft a round")

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
