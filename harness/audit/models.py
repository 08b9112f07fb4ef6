"""Which models are audited: the zoo's, the smallest of every family; or a pair that a user names."""

from dataclasses import replace
from pathlib import Path

from harness.audit.subjects import Pair, Sizes, Subject, blocks, hearing, pipelines, short, strict_blocks, whole
from harness.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.models import is_encoder_decoder, num_layers

DECODER, ENCODER_DECODER, HEARS = "decoder-only", "encoder-decoder", "hears"


def zoo_subjects(scale: str, source: str, sizes: Sizes, seed: int = 0) -> list[Subject]:
    """Every family of the zoo. The first pair carries every rule, kernel, drafter and schedule; the others add their paths."""

    def pair(name: str, session: str, task: str, target: str, *drafters: DrafterSpec) -> Pair:
        style = "t5" if session == ENCODER_DECODER else "instruction"
        plain = _plain(sizes, task, source, seed, ModelSpec(name=f"zoo:{target}"), style).replace(profile=scale)
        return Pair(name=name, session=session, plain=plain, drafters=drafters)

    gpt, table = _model("gpt-draft"), ModelSpec(name="zoo:ngram-gpt")
    free = [DrafterSpec(kind="copy"), DrafterSpec(kind="random")]
    counted = [DrafterSpec(kind=kind, model=table) for kind in ("unigram", "bigram")]
    small = _model("llama-draft-small")
    stacked = DrafterSpec(kind="hierarchical", model=ModelSpec(name="zoo:llama-draft-large"), inner=small)
    t5_table = DrafterSpec(kind="bigram", model=ModelSpec(name="zoo:ngram-t5-en-de"))
    block = DrafterSpec(kind="block", model=ModelSpec(name="zoo:specdec-drafter"))
    sharing = DrafterSpec(kind="block", model=ModelSpec(name="zoo:specdec-drafter-shared"), encoder="shared")
    blocked = (block, replace(block, encoder="concurrent"), sharing)
    heads = DrafterSpec(kind="blockwise", model=ModelSpec(name="zoo:specdec-blockwise"))
    llama = pair("Llama", DECODER, "text", "llama-target", small, stacked)
    deep = pair("PPD's Llama", DECODER, "text", "llama-deep")
    depth = num_layers(deep.plain.target, scale)
    return [
        *whole(pair("GPT", DECODER, "text", "gpt-target", gpt, *counted, *free)),
        *short(replace(llama, early_layer=num_layers(llama.plain.target, scale) // 2)),
        *short(pair("T5", ENCODER_DECODER, "wmt-en-de", "t5-base", _model("t5-small"), t5_table, free[0])),
        *blocks(pair("SpecDec", ENCODER_DECODER, "wmt-en-de", "specdec-verifier", *blocked)),
        *strict_blocks(pair("Heads", ENCODER_DECODER, "wmt-en-de", "specdec-verifier", heads)),
        *pipelines(deep, depth // 2, ModelSpec(name="zoo:llama-deep-heads")),
        *hearing(pair("Whisper", HEARS, "librispeech-clean", "whisper-target", _model("whisper-draft"))),
    ]


def own_subjects(target: str, draft: str, task: str, source: str, sizes: Sizes, seed: int = 0) -> list[Subject]:
    """What a user's two checkpoints allow: no table, heads or block drafter is trained for them. PPD needs layers to split."""
    spec = ModelSpec(name=target)
    both = is_encoder_decoder(spec, "toy", source)
    plain = _plain(sizes, task, source, seed, spec, "t5" if both else "instruction")
    model = DrafterSpec(kind="model", model=ModelSpec(name=draft))
    stacked = DrafterSpec(kind="hierarchical", model=model.model, inner=model)
    drafters = (model, stacked, DrafterSpec(kind="copy"), DrafterSpec(kind="random"))
    session = ENCODER_DECODER if both else DECODER
    pair = Pair(name=Path(target).name, session=session, plain=plain, drafters=drafters)
    if both:
        return whole(pair)
    return [*whole(pair), *pipelines(pair, -(-num_layers(spec, "toy") // 2))]


def _plain(sizes: Sizes, task: str, source: str, seed: int, target: ModelSpec, style: str) -> Experiment:
    return Experiment(
        task=task,
        source=source,
        target=target,
        method=MethodSpec(name="autoregressive"),
        seed=seed,
        limit=sizes.prompts,
        max_new_tokens=sizes.new_tokens,
        max_input_tokens=64,
        prompt_style=style,
        num_threads=1,
    )


def _model(name: str) -> DrafterSpec:
    return DrafterSpec(kind="model", model=ModelSpec(name=f"zoo:{name}"))
