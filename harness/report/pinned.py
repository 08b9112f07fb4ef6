"""What ``make regress`` measures: comparisons on small models whose weights are committed, the same everywhere.

The checkpoints are the zoo's of scale "pinned" in half precision; ``python -m harness.report.pinned`` trains and writes them
anew. They decode in fp64: rounding differs from processor to processor, but by far too little to move a token or a decision.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copyfile, rmtree

import torch
from safetensors.torch import load_file, save_file

from harness.core.experiment import Comparison, DrafterSpec, EarlyProbe, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.zoo.build import ensure
from kernels.inputs import SamplingSpec

CHECKPOINTS = Path(__file__).resolve().parents[2] / "results" / "baselines" / "checkpoints"
MODELS = (
    "llama-target", "llama-draft", "t5-target", "t5-draft", "ngram-t5-cnndm", "specdec-verifier", "specdec-drafter",
    "whisper-target", "whisper-draft",
)  # fmt: skip
LEFT_OUT = ("recipe.json",)
NUM_EXAMPLES = 16
UNPROBED = ("copy", "suffix", "slem", "random", "block")  # whose overlap is not measured: mostly point masses


FILTERED = SamplingSpec(temperature=0.7, top_k=20, top_p=0.9)


def model(name: str) -> ModelSpec:
    return ModelSpec(name=str(CHECKPOINTS / name))


def drafted_by(name: str, kind: str = "model") -> DrafterSpec:
    return DrafterSpec(kind=kind, model=model(name))


def drafted(base: Experiment, drafter: DrafterSpec, gamma: int | None = 3, **method: object) -> Comparison:
    counts = {} if gamma is None else {"gamma": gamma}
    spec = MethodSpec.of("speculative", drafter=drafter, **counts, **method)  # type: ignore[arg-type]
    probes = () if drafter.kind in UNPROBED else (OverlapProbe(drafter=drafter),)
    return Comparison((base.replace(probes=probes), base.replace(method=spec)))


def piped(base: Experiment, **method: object) -> Comparison:
    spec = MethodSpec.of("ppd", early_layer=4, **method)  # type: ignore[arg-type]
    return Comparison((base.replace(probes=(EarlyProbe(layers=(3, 4, 5)),)), base.replace(method=spec)))


def plain_decoding(
    seed: int, num_threads: int, limit: int, task: str, target: str, temperature: float = 0.0, **values: object
) -> Experiment:
    base = Experiment(
        task=task,
        profile="test",
        target=model(target),
        method=MethodSpec(name="autoregressive"),
        sampling=SamplingSpec(temperature=temperature),
        seed=seed,
        limit=limit,
        max_new_tokens=40,
        max_input_tokens=160,
        prompt_style="instruction" if target.startswith("llama") else "t5",
        dtype="float64",
        num_threads=num_threads,
    )
    return base.replace(**values)


def pinned_set(seed: int = 0, num_threads: int = 1, num_examples: int = NUM_EXAMPLES) -> dict[str, Comparison]:
    """The pinned comparisons by name: text, translation, summaries, answers and speech; every family, and every part that needs
    no more than the committed models.

    ``regress`` measures them at their defaults; other seeds and threads are to find out how often it is wrong.
    """

    plain = partial(plain_decoding, seed, num_threads, num_examples)
    llama, t5, speech = drafted_by("llama-draft"), drafted_by("t5-draft"), drafted_by("whisper-draft")
    blocks, ngram = drafted_by("specdec-drafter", "block"), drafted_by("ngram-t5-cnndm", "bigram")
    written, alone = plain("wmt-en-de", "specdec-verifier"), MethodSpec.of("drafter-alone", drafter=blocks, gamma=5)
    sampled = plain("wmt-en-de", "specdec-verifier", 1.0, batch_size=4)
    answers, german = plain("squad", "llama-target"), plain("wmt-en-de", "t5-target")
    text, drawn = plain("text", "llama-target"), plain("text", "llama-target", 1.0)
    beams, searching = MethodSpec.of("beam", num_beams=3), MethodSpec.of("speculative-beam", drafter=t5, gamma=3, num_beams=3)
    batched, spoken = drawn.replace(batch_size=4), plain("librispeech-clean", "whisper-target", 1.0)
    flat = batched.replace(sampling=SamplingSpec(temperature=2.0))
    stacked = DrafterSpec(kind="hierarchical", model=llama.model, inner=DrafterSpec(kind="copy"))
    rounded = DrafterSpec(kind="rounded", model=ModelSpec(name=f"int8:{model('llama-target').name}"))
    shared = DrafterSpec(kind="tli", model=llama.model, options={"draft_tokens": 200})
    return {
        "squad-greedy": drafted(answers, llama, schedule="heuristic"),
        "squad-copy": drafted(answers, DrafterSpec(kind="copy")),
        "text-sampled-batch": drafted(batched, llama, schedule="heuristic"),
        "text-filtered": drafted(plain("text", "llama-target").replace(sampling=FILTERED), llama),
        "text-lenient": drafted(drawn, llama, rule="lenience", lenience=0.3),
        "text-lenient-greedy": drafted(text, llama, rule="lenience", lenience=0.3),
        "text-typical": drafted(drawn, llama, rule="typical"),
        "text-target-greedy": drafted(drawn, llama, rule="target-greedy"),
        "text-hierarchical": drafted(drawn, stacked, rule="baseline"),
        "text-hierarchical-model": drafted(text.replace(sampling=FILTERED), replace(stacked, inner=llama)),
        "text-hierarchical-batch": drafted(batched, replace(stacked, inner=llama), rule="block-verification"),
        "text-sigmoid-copy": drafted(drawn, DrafterSpec(kind="copy"), rule="sigmoid"),
        "text-tli": drafted(drawn, shared, rule="fused", schedule="sweep"),
        "text-slem": drafted(drawn, drafted_by("llama-draft", "slem"), rule="point-mass"),
        "text-first-layers": drafted(drawn, DrafterSpec(kind="first-layers"), rule="block-verification"),
        "text-rounded": drafted(batched, rounded),
        "text-suffix": drafted(text, DrafterSpec(kind="suffix", options={"match_factor": 2.0}), 5),
        "text-random": drafted(drawn, DrafterSpec(kind="random"), None, schedule="optimal", alpha=0.7, cost=0.1),
        "text-generate-batch": Comparison((flat, flat.replace(method=MethodSpec.of("transformers")))),
        "de-greedy": drafted(german, t5),
        "ro-greedy": drafted(plain("wmt-en-ro", "t5-target"), t5),
        "de-beam": Comparison((german, german.replace(method=beams))),
        "de-beam-batch": Comparison(tuple(one.replace(batch_size=4) for one in (german, german.replace(method=beams)))),
        "de-speculative-beam": Comparison((german.replace(method=beams), german.replace(method=searching))),
        "news-sampled": drafted(plain("cnndm", "t5-target", 1.0), t5),
        "news-bigram": drafted(plain("cnndm", "t5-target", 1.0), ngram),
        "news-unigram": drafted(plain("cnndm", "t5-target", 1.0), replace(ngram, kind="unigram")),
        "ppd-greedy": piped(answers.replace(ignore_eos=True), candidates=1, execution="process"),
        "ppd-sampled": piped(plain("squad", "llama-target", 1.0, ignore_eos=True), candidates=3, execution="batched"),
        "ppd-long": piped(text.replace(ignore_eos=True, max_new_tokens=100), candidates=2, execution="batched"),
        "blocks-strict": drafted(written, blocks, 5, rule="top-1"),
        "blocks-relaxed-batch": drafted(written.replace(batch_size=4), blocks, 5, rule="top-beta", beta=2, tau=3.0),
        "blocks-alone": Comparison((written, written.replace(method=alone))),
        "blocks-alone-sampled-batch": Comparison((sampled, sampled.replace(method=alone))),
        "speech-exact": drafted(spoken, speech, rule="exact"),
        "speech-sigmoid": drafted(spoken, speech, rule="sigmoid", scale=10.0),
        "speech-released": drafted(spoken, speech, rule="sigmoid-released", scale=10.0),
    }


def write_checkpoints(folder: Path = CHECKPOINTS) -> None:
    """Train the pinned models, or take them from the cache, and write them in half precision."""
    for name, made in ensure(MODELS, "pinned", "toy").items():
        rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
        for file in sorted(made.iterdir()):
            if file.suffix == ".safetensors":
                tensors = {
                    key: value.half() if value.dtype == torch.float32 else value for key, value in load_file(file).items()
                }
                save_file(tensors, folder / name / file.name, {"format": "pt"})
            elif file.suffix == ".json" and file.name not in LEFT_OUT:
                text = json.dumps(json.loads(file.read_text(encoding="utf8")), ensure_ascii=False, separators=(",", ":"))
                (folder / name / file.name).write_text(text + "\n", encoding="utf8")
            elif file.name not in LEFT_OUT:
                copyfile(file, folder / name / file.name)


if __name__ == "__main__":
    write_checkpoints()
