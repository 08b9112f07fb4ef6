"""A choice as commands to paste: ours, transformers', vLLM's and SGLang's.

Names and meanings are those of transformers 5.23 (``generation/configuration_utils.py``), of vLLM's
``vllm/config/speculative.py`` at 002e77c1f0ef and of SGLang's ``python/sglang/srt/server_args.py`` at 001067fffe33.
Engines draft by rules of their own, so what was predicted here is not promised there. SGLang's draft tokens count the pending
one, and its n-grams are a tree: of breadth 1 a chain for each suffix that matches, as many nodes in all.
vLLM's draft model draws its drafts only with ``draft_sample_method``; else they are one-hot, and of another vocabulary they
always are. transformers' early exit reads how much to draft from the target's own settings, and drafts by all layers in
families whose forward pass does not know ``num_hidden_layers`` at run time; it generates 20 tokens unless told otherwise.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.core.experiment import POCKET, DrafterSpec, ModelSpec
from harness.models.fit import knows_all_tokens
from harness.models.pocket import TABLE
from kernels.inputs import SamplingSpec
from methods.options import values_of

MAX_MATCH = 8  # of our drafter copy, methods.speculative.per_row

EARLY_EXIT = "exits early for Llama, Mistral, Qwen2 and Gemma; others draft by all layers"
NEEDS_SUFFIXES = "needs the package arctic-inference; it drafts from this text alone, as here"
ONE_ROW = "drafts for one row at a time alone; give --batch 1"


def engine_name(spec: ModelSpec) -> str | None:
    """Return the name that other engines know a model by; None for rounded ones and those that are made here."""
    if spec.rounding is not None or spec.zoo_name is not None:
        return None
    if spec.base.startswith(POCKET):
        found = TABLE.get(spec.base.removeprefix(POCKET))
        return None if found is None else found.hub.name
    return spec.name


def ours(common: Sequence[str], drafter: DrafterSpec, gamma: int) -> str:
    """Return our command; ``common`` are its words without the method."""
    draft = [] if drafter.model is None else ["--draft", drafter.model.name]
    kind = [] if drafter.kind == "model" else ["--drafter", drafter.kind]
    for name, value in values_of(drafter.options).items():
        kind += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(["foretoken", "run", *common, "--method", "speculative", *draft, *kind, "--gamma", str(gamma)])


def commands(
    common: Sequence[str],
    target: ModelSpec,
    drafter: DrafterSpec,
    gamma: int,
    *,
    sampling: SamplingSpec,
    batch_size: int,
    text: bool,
    max_new_tokens: int,
) -> dict[str, str]:
    """Return the commands of a drafter at a gamma by engine; what an engine does not have says so.

    ``text``: the target is a decoder-only model, which the servers draft for.
    """
    how = f"max_new_tokens={max_new_tokens}, {_sampled(sampling)}"
    name = engine_name(target)
    draft = None if drafter.model is None else engine_name(drafter.model)
    found = {"foretoken": ours(common, drafter, gamma)}
    missing = "" if name else f"no name there: {target.name} is made here"
    files = [one for one in (name, draft) if one is not None and one.endswith(".gguf")]
    if drafter.kind == "first-layers":
        early_exit = f"model.generate(**inputs, assistant_early_exit={drafter.options.draft_layers}, {how})"
        prepared = f"model.generation_config.update({_drafts(gamma)}); {early_exit}  # {EARLY_EXIT}"
        found["transformers"] = prepared if batch_size == 1 else ONE_ROW
        return found | dict.fromkeys(("vLLM", "SGLang"), "has no early exit of an untrained model")
    if drafter.kind not in ("copy", "suffix", "model", "tli"):
        missing = f"has no drafter like {drafter.kind}"
    elif drafter.model is not None and draft is None:
        missing = f"no name there: {drafter.model.name} is made here"
    elif drafter.model is not None and Path(str(draft)).is_dir() and not knows_all_tokens(drafter.model):
        missing = f"cannot read {drafter.model.name}: it knows a part of the vocabulary, by numbers of its own"
    elif files:
        missing = f"no command here: {files[0]} is a GGUF file, which each engine reads by flags of its own"
    if missing or name is None:
        return found | dict.fromkeys(("transformers", "vLLM", "SGLang"), missing)
    kind = "AutoModelForCausalLM" if text else "type(model)"
    if drafter.kind == "suffix":
        found |= dict.fromkeys(("transformers", "SGLang"), "has no suffix decoding")
        vllm = _vllm(name, drafter, draft, gamma, sampling.greedy)
        return found | {"vLLM": f"{vllm}  # {NEEDS_SUFFIXES}" if text else "drafts for decoder-only models alone"}
    found["transformers"] = _transformers(drafter, draft, gamma, how, kind) if batch_size == 1 else ONE_ROW
    if not text:
        return found | dict.fromkeys(("vLLM", "SGLang"), "drafts for decoder-only models alone")
    return found | {"vLLM": _vllm(name, drafter, draft, gamma, sampling.greedy), "SGLang": _sglang(name, drafter, draft, gamma)}


def _sampled(sampling: SamplingSpec) -> str:
    """Return how tokens are drawn; filters that are off too, since transformers keeps 50 logits unless told otherwise."""
    if sampling.greedy:
        return "do_sample=False"
    off = f"top_k={sampling.top_k or 0}, top_p={sampling.top_p or 1.0}"
    return f"do_sample=True, temperature={sampling.temperature}, {off}"


def _drafts(gamma: int) -> str:
    """Return the settings of a draft by which it drafts so many tokens in every round."""
    return f'num_assistant_tokens={gamma}, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0'


def _transformers(drafter: DrafterSpec, draft: str | None, gamma: int, how: str, kind: str) -> str:
    if draft is None:
        return f"model.generate(**inputs, prompt_lookup_num_tokens={gamma}, max_matching_ngram_size={MAX_MATCH}, {how})"
    other = ", tokenizer=tokenizer, assistant_tokenizer=draft_tokenizer" if drafter.kind == "tli" else ""
    return (
        f"draft = {kind}.from_pretrained({draft!r}); draft.generation_config.update({_drafts(gamma)}); "
        f"model.generate(**inputs, assistant_model=draft{other}, {how})"
    )


def _vllm(name: str, drafter: DrafterSpec, draft: str | None, gamma: int, greedy: bool) -> str:
    config: dict[str, str | int | float] = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": MAX_MATCH}
    if drafter.kind == "suffix":
        config = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
        config["suffix_decoding_max_spec_factor"] = drafter.options.match_factor
        config["suffix_decoding_min_token_prob"] = drafter.options.min_share
    if draft is not None:
        config = {"method": "draft_model", "model": draft}
        config |= {} if greedy or drafter.kind == "tli" else {"draft_sample_method": "probabilistic"}
        config |= {"use_heterogeneous_vocab": True} if drafter.kind == "tli" else {}
    config["num_speculative_tokens"] = gamma
    return shlex.join(["vllm", "serve", name, "--speculative-config", json.dumps(config)])


def _sglang(name: str, drafter: DrafterSpec, draft: str | None, gamma: int) -> str:
    if drafter.kind == "tli":
        return "has no drafter of another vocabulary"
    words = ["python", "-m", "sglang.launch_server", "--model-path", name, "--speculative-algorithm"]
    drafts = ["--speculative-num-draft-tokens", str(gamma + 1)]
    if draft is None:
        tree = shlex.join([*words, "NGRAM", "--speculative-ngram-max-bfs-breadth", "1", *drafts])
        return f"{tree}  # drafts a tree of {gamma} tokens, not a chain"
    steps = ["--speculative-num-steps", str(gamma), "--speculative-eagle-topk", "1"]
    return shlex.join([*words, "STANDALONE", "--speculative-draft-model-path", draft, *steps, *drafts])
