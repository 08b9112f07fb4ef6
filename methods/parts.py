"""Every method, drafter, verify rule and schedule by name. A new one is a line here; importing this imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from methods.options import MethodOptions, Options, Part, option
from methods.ppd.options import PipelineOptions
from methods.specdec.options import BlockOptions, DrafterAloneOptions, TopBetaOptions, TopOneOptions
from methods.speculative.options import (
    FirstLayersOptions,
    GammaOptions,
    HierarchicalOptions,
    LenienceOptions,
    OptimalOptions,
    SharedTokensOptions,
    SigmoidOptions,
    SpeculativeBeamOptions,
    SpeculativeOptions,
    SuffixOptions,
    TypicalOptions,
)


@dataclass(frozen=True, kw_only=True)
class _BeamOptions(MethodOptions):
    num_beams: int = option(4, "width of beam search", least=1)


@dataclass(frozen=True, kw_only=True)
class _TransformersOptions(MethodOptions):
    """``early_layer`` is of drafter early-exit."""

    takes: ClassVar[tuple[str, ...]] = ("drafter", "schedule")

    num_beams: int = option(1, "width of beam search", least=1)
    early_layer: int | None = option(None, "the layers that early-exit drafts with", least=1)


Registry = dict[str, Callable[..., Any]]

RULES: Registry = {
    "speculative-sampling": Part("methods.speculative.rules:SpeculativeSampling", Options),
    "baseline": Part("methods.speculative.rules:BASELINE", Options),
    "exact": Part("methods.speculative.rules:EXACT", Options),
    "fused": Part("methods.speculative.rules:FUSED", Options),
    "block-verification": Part("methods.speculative.block_verification:BlockVerification", Options),
    "point-mass": Part("methods.speculative.engine_rules:PointMass", Options),
    "sigmoid": Part("methods.speculative.rules:SigmoidRule", SigmoidOptions),
    "sigmoid-released": Part("methods.speculative.rules:SIGMOID_RELEASED", SigmoidOptions),
    "lenience": Part("methods.speculative.rules:Lenience", LenienceOptions),
    "target-greedy": Part("methods.speculative.engine_rules:TargetGreedy", Options),
    "typical": Part("methods.speculative.engine_rules:Typical", TypicalOptions),
    "top-1": Part("methods.specdec.rules:TopOne", TopOneOptions),
    "top-beta": Part("methods.specdec.rules:TopBeta", TopBetaOptions),
}
SCHEDULES: Registry = {
    "constant": Part("methods.speculative.schedules:Constant", GammaOptions),
    "heuristic": Part("methods.speculative.schedules:Heuristic", GammaOptions),
    "optimal": Part("methods.speculative.schedules:Optimal", OptimalOptions),
    "sweep": Part("methods.speculative.schedules:Sweep", GammaOptions),
}
DRAFTERS: Registry = {
    "model": Part("methods.speculative.drafters:model", Options),
    "rounded": Part("methods.speculative.drafters:rounded", Options),
    "tli": Part("methods.speculative.drafters:tli", SharedTokensOptions),
    "slem": Part("methods.speculative.drafters:slem", Options),
    "unigram": Part("methods.speculative.drafters:unigram", Options),
    "bigram": Part("methods.speculative.drafters:bigram", Options),
    "copy": Part("methods.speculative.drafters:copy", Options, reads="none"),
    "suffix": Part("methods.speculative.drafters:suffix", SuffixOptions, reads="none"),
    "random": Part("methods.speculative.drafters:random", Options, reads="none"),
    "first-layers": Part("methods.speculative.drafters:first_layers", FirstLayersOptions, reads="none"),
    "hierarchical": Part("methods.speculative.drafters:hierarchical", HierarchicalOptions),
    "block": Part("methods.speculative.drafters:block", BlockOptions, reads="block"),
    "blockwise": Part("methods.speculative.drafters:blockwise", Options, reads="heads"),
}
METHODS: Registry = {
    "autoregressive": Part("methods.autoregressive:Autoregressive", MethodOptions),
    "beam": Part("methods.beam:BeamSearch", _BeamOptions),
    "drafter-alone": Part("methods.specdec.drafter:DrafterAlone", DrafterAloneOptions),
    "ppd": Part("methods.ppd.pipeline:PredictivePipelinedDecoding", PipelineOptions),
    "speculative": Part("methods.speculative.decode:DraftAndVerify", SpeculativeOptions),
    "speculative-beam": Part("methods.speculative.beam:SpeculativeBeamSearch", SpeculativeBeamOptions),
    "transformers": Part("methods.transformers_generate:TransformersGenerate", _TransformersOptions),
}
