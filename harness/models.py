"""Models by name: the zoo's, a local folder's, or the Hub's, loaded as decoder stacks with their tokenizers.

``pin_model`` says what a name means today without loading weights; ``load_model`` loads exactly that.
"""

import json
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from harness import zoo
from harness.errors import UsageError
from harness.experiment import ModelSpec
from harness.hearing import Listener
from harness.model_files import (
    ZOO,
    Size,
    block_heads_file,
    eos_ids,
    estimate,
    folder_hash,
    hash_of,
    heads_file,
    hub_arguments,
    hub_commit,
    is_block_drafter,
    load_config,
    local_folder,
    model_path,
    one_line,
    table_file,
    zoo_folder_of,
)
from harness.zoo.build import quiet
from harness.zoo.cache import DONE
from methods.errors import InputError
from methods.hearing import WhisperSession
from methods.models import stack_for
from methods.models.base import Stack
from methods.models.whisper import WhisperStack
from methods.ppd.heads import TrainedHeads, load_heads
from methods.session import ModelSession
from methods.specdec.blockwise import BlockwiseHeads, load_blockwise
from methods.specdec.stack import BlockStack
from methods.speculative.ngram import NGramTable
from methods.spread import SpreadSession, spread_stack

__all__ = [
    "LoadedModel", "Size", "check_pair", "check_role", "estimate", "fits", "foreign_heads", "is_encoder_decoder",
    "is_ngram_table", "load_block_heads", "load_early_heads", "load_model", "load_ngrams", "load_tokenizer",
    "no_block_heads", "num_layers", "pin_heads", "pin_model", "scale_of",
]  # fmt: skip

HEARS = "whisper"
CPU_BYTES = 1 << 50  # no limit: where a CPU is asked for, nothing is laid anywhere else
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to decode. ``path`` is a local folder or a Hub id; sizes are those in memory."""

    name: str
    path: str
    stack: Stack
    tokenizer: PreTrainedTokenizerBase
    is_encoder_decoder: bool
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    size_bytes: int
    listener: Listener | None = None

    @property
    def opening(self) -> tuple[int, ...]:
        """The forced tokens of a model that hears; others have none."""
        return self.stack.opening if isinstance(self.stack, WhisperStack) else ()

    @property
    def vocab_size(self) -> int:
        return self.stack.vocab_size

    @property
    def position_limit(self) -> int | None:
        """The longest row: of a source for an encoder-decoder that limits them, else of prompt and output together."""
        return self.stack.source_limit if self.is_encoder_decoder else self.stack.position_limit

    def session(self) -> ModelSession:
        """A new session; all of a model's sessions share its weights."""
        if self.stack.parts:
            return SpreadSession(self.stack)
        return WhisperSession(self.stack) if isinstance(self.stack, WhisperStack) else ModelSession(self.stack)

    def encode(self, text: str) -> tuple[int, ...]:
        """A prompt, with the special tokens that this model's prompts have."""
        return tuple(self.tokenizer(text, verbose=False).input_ids)

    def encode_chat(self, text: str) -> tuple[int, ...]:
        """One user's turn in the tokenizer's chat template, ready for the answer."""
        if not self.tokenizer.chat_template:
            raise UsageError(f"chat_template: {self.name} has none; expected a chat model, or leave the flag out")
        turns = [{"role": "user", "content": text}]
        return tuple(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))

    def encode_continuation(self, text: str) -> tuple[int, ...]:
        """What follows a prompt (or is an encoder-decoder's output), without special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def pin_model(spec: ModelSpec, profile: str, source: str) -> ModelSpec:
    """Fill in ``revision``: the recipe's hash (zoo), the files' (folder, counted table), or the commit (Hub). Loads no weights.

    ``profile`` chooses the zoo's sizes and ``source`` what they train on. A Hub id whose
    commit cannot be looked up (no network) keeps the revision it was given, or "main".
    """
    if spec.name.startswith(ZOO):
        return replace(spec, revision=zoo.recipe_hash(spec.name.removeprefix(ZOO), scale_of(profile), source))
    if (table := table_file(spec.name)) is not None:
        return replace(spec, revision=hash_of([table]))
    if (folder := local_folder(spec.name)) is not None:
        return replace(spec, revision=folder_hash(folder))
    return replace(spec, revision=hub_commit(spec))


def pin_heads(spec: ModelSpec, profile: str, source: str) -> ModelSpec:
    """The same for trained heads, early or blockwise. UsageError for a folder that holds none."""
    if spec.name.startswith(ZOO):
        return pin_model(spec, profile, source)
    if (file := heads_file(spec.name) or block_heads_file(spec.name)) is None:
        raise UsageError(
            f"heads {spec.name!r}: no heads there; expected a folder of early heads (as `foretoken heads` writes) or of "
            "blockwise ones, or zoo:NAME"
        )
    return replace(spec, revision=hash_of([file]))


def scale_of(profile: str) -> zoo.Scale:
    return cast(zoo.Scale, profile) if profile in zoo.RECIPES else "toy"


def is_encoder_decoder(spec: ModelSpec, profile: str, source: str) -> bool:
    """From the recipe or the config alone."""
    if spec.name.startswith(ZOO):
        return zoo.recipe_for(spec.name.removeprefix(ZOO), scale_of(profile), source).corpus.is_encoder_decoder
    return bool(load_config(spec).is_encoder_decoder)


def num_layers(spec: ModelSpec, profile: str) -> int:
    """A decoder-only model's depth, from the recipe or the config alone; the zoo's is one whatever the data."""
    if spec.name.startswith(ZOO):
        recipe = zoo.recipe_for(spec.name.removeprefix(ZOO), scale_of(profile), "toy")
        if not isinstance(recipe, zoo.Recipe):
            raise UsageError(f"model {spec.name}: trained heads, no model of their own; name their base, {recipe.teacher.name}")
        return recipe.num_layers
    return int(load_config(spec).num_hidden_layers)


def load_model(spec: ModelSpec, *, device: str = "cpu", dtype: str = "float32") -> LoadedModel:
    """Raises UsageError if the model is missing, gated, unreachable, unreadable, or of a kind that no stack runs."""
    path = model_path(spec)
    config = load_config(spec)
    with quiet(), one_line(spec, path):
        placed = _placement(spec, device)
        model, tokenizer = _load(spec, path, config, getattr(torch, dtype), placed)
        hears, given = config.model_type == HEARS, hub_arguments(spec)
        extractor = transformers.AutoFeatureExtractor.from_pretrained(path, **given) if hears else None
        if not placed:
            model.to(device)
    try:
        model.eval().requires_grad_(False)
        stack = _stack(model, config, device, bool(placed))
    except InputError as error:
        raise UsageError(f"model {spec.name}: {error}") from error
    parameters = list(model.parameters())
    return LoadedModel(
        name=spec.name,
        path=path,
        stack=stack,
        tokenizer=tokenizer,
        is_encoder_decoder=bool(config.is_encoder_decoder),
        eos_token_ids=eos_ids(model.generation_config, config),
        num_parameters=sum(p.numel() for p in parameters),
        size_bytes=sum(p.numel() * p.element_size() for p in parameters),
        listener=None if extractor is None else Listener(extractor, spec.name),
    )


def _placement(spec: ModelSpec, device: str) -> dict[str, Any]:
    """What from_pretrained is told to lay a model on all devices of a kind; nothing for a model on one."""
    if spec.device_map is None:
        return {}
    if spec.device_map != "auto":
        raise UsageError(f"device_map {spec.device_map!r} of model {spec.name}: expected auto, or none")
    if find_spec("accelerate") is None:
        raise UsageError("device_map 'auto': the package accelerate is not installed; run: pip install 'foretoken[spread]'")
    return {"device_map": spec.device_map} | ({"max_memory": {"cpu": CPU_BYTES}} if device == "cpu" else {})


def _stack(model: Any, config: PreTrainedConfig, device: str, is_placed: bool) -> Stack:
    if is_block_drafter(config):
        return BlockStack(model)
    if not is_placed:
        return stack_for(model)
    from accelerate.hooks import remove_hook_from_module

    remove_hook_from_module(model, recurse=True)  # our stacks run the weights themselves
    return spread_stack(model, torch.empty(0, device=device).device)


def _load(
    spec: ModelSpec, path: str, config: PreTrainedConfig, dtype: torch.dtype, placed: dict[str, Any]
) -> tuple[Any, PreTrainedTokenizerBase]:
    tokenizer = AutoTokenizer.from_pretrained(path, **hub_arguments(spec))
    if is_block_drafter(config):
        try:
            from methods.specdec.network import load_network

            return load_network(path, dtype), tokenizer
        except InputError as error:
            raise UsageError(f"model {spec.name}: {error}") from error
    # Looked up here: transformers imports a class where it is named, and what only names models is spared that second.
    kind: Any = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    kind = transformers.AutoModelForSpeechSeq2Seq if config.model_type == HEARS else kind
    model = kind.from_pretrained(path, dtype=dtype, **placed, **hub_arguments(spec))
    if spec.untrained:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model.load_state_dict(kind.from_config(config, dtype=dtype).state_dict())
    return model, tokenizer


def check_role(name: str, *, is_block: bool, drafts_blocks: bool) -> None:
    """UsageError for a block drafter where a language model is needed, and the other way round."""
    if is_block == drafts_blocks:
        return
    if drafts_blocks:
        raise UsageError(
            f"draft {name}: it is no block drafter (its config.json has no block_size); expected a folder that a block "
            "drafter was trained into, or zoo:specdec-drafter; for a language model use --drafter model"
        )
    raise UsageError(f"model {name}: it is a block drafter; expected a language model (it drafts with --drafter block)")


def load_ngrams(spec: ModelSpec, target: LoadedModel) -> NGramTable:
    """A counted table, from the zoo or a folder (or file) of one. UsageError unless it has the target's vocabulary."""
    path = Path(model_path(spec))
    try:
        table = NGramTable.load(path / zoo.TABLE if path.is_dir() else path)
    except InputError as error:
        raise UsageError(str(error)) from error
    if table.vocab_size != target.vocab_size:
        raise UsageError(
            f"n-gram table {spec.name} has {table.vocab_size} tokens and target {target.name} {target.vocab_size}; "
            "expected the same vocabulary: count the table with the target's tokenizer"
        )
    return table


def load_early_heads(spec: ModelSpec, target: LoadedModel) -> TrainedHeads:
    """Trained early heads, from the zoo or a folder. UsageError unless they are of the target's shape."""
    try:
        return load_heads(zoo_folder_of(spec) if spec.name.startswith(ZOO) else Path(spec.name), target.stack)
    except InputError as error:
        raise UsageError(f"heads {spec.name} for {target.name}: {error}") from error


def load_block_heads(spec: ModelSpec, target: LoadedModel) -> BlockwiseHeads:
    """Blockwise heads, from the zoo or a folder. UsageError unless they are of the target's width, and the zoo's its own."""
    _check_base(spec, target)
    try:
        return load_blockwise(zoo_folder_of(spec) if spec.name.startswith(ZOO) else Path(spec.name), target.stack)
    except InputError as error:
        raise UsageError(f"draft {spec.name} for {target.name}: {error}") from error


def _check_base(spec: ModelSpec, target: LoadedModel) -> None:
    """UsageError for the zoo's blockwise heads on another model of the zoo than that which they were trained on."""
    if not (spec.name.startswith(ZOO) and target.name.startswith(ZOO)):
        return
    base = json.loads((zoo_folder_of(spec) / DONE).read_text(encoding="utf8")).get("base")
    if base is None:
        raise no_block_heads(spec.name)
    if Path(target.path).name != f"{base['name'].removeprefix(ZOO)}-{base['revision']}":
        raise foreign_heads(spec.name, target.name, base["name"])


def no_block_heads(name: str) -> UsageError:
    return UsageError(f"draft {name}: it holds no blockwise heads; expected zoo:specdec-blockwise, or their folder")


def foreign_heads(name: str, target: str, base: str) -> UsageError:
    return UsageError(f"draft {name} for {target}: its heads were trained on {base}; expected that target")


def check_pair(target: LoadedModel, draft: LoadedModel) -> None:
    """UsageError, naming both sides, unless the draft's tokens mean to the target what they mean to the draft."""

    def refuse(what: str, theirs: object, ours: object, remedy: str) -> None:
        raise UsageError(f"{what} differ: target {target.name} has {theirs}, draft {draft.name} has {ours}; {remedy}")

    kinds = {True: "an encoder-decoder", False: "a decoder-only model"}
    if target.is_encoder_decoder != draft.is_encoder_decoder:
        refuse("kinds", kinds[target.is_encoder_decoder], kinds[draft.is_encoder_decoder], "choose two of one kind")
    heard = [None if model.listener is None else model.listener.settings for model in (target, draft)]
    if heard[0] != heard[1]:
        refuse("features", _shown(heard[0]), _shown(heard[1]), "choose two that hear alike")
    if target.vocab_size != draft.vocab_size:
        refuse("vocabularies", f"{target.vocab_size} tokens", f"{draft.vocab_size}", "choose models that share a tokenizer")
    theirs, ours = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if theirs != ours:
        token = min(token for token in {**theirs, **ours} if theirs.get(token) != ours.get(token))
        ids = (f"token {token!r} as {vocab.get(token, 'none')}" for vocab in (theirs, ours))
        refuse("tokenizers", next(ids), next(ids), "choose models that share a tokenizer")
    for name in SPECIAL_IDS:
        ids_pair = getattr(target.tokenizer, name), getattr(draft.tokenizer, name)
        if ids_pair[0] != ids_pair[1]:
            refuse("special tokens", f"{name} {ids_pair[0]}", f"{name} {ids_pair[1]}", "choose models that share a tokenizer")


def _shown(settings: dict[str, Any] | None) -> str:
    return "no ears" if settings is None else ", ".join(f"{name} {value}" for name, value in settings.items())


def fits(model: LoadedModel, num_prompt: int, num_new: int) -> bool:
    """Whether a prompt and its output stay within a model's position limit. A draft may have a smaller one than its target."""
    stack = model.stack
    if model.is_encoder_decoder:
        return _within(num_prompt, stack.source_limit) and _within(num_new, stack.position_limit)
    return _within(num_prompt + num_new, stack.position_limit)


def _within(count: int, limit: int | None) -> bool:
    return limit is None or count <= limit


def is_ngram_table(spec: ModelSpec) -> bool:
    """Whether a name means counted n-grams rather than a network, judged without loading it."""
    if spec.name.startswith(ZOO):
        name = spec.name.removeprefix(ZOO)
        return any(recipes[name].family == "ngram" for recipes in zoo.RECIPES.values() if name in recipes)
    return table_file(spec.name) is not None


def load_tokenizer(spec: ModelSpec) -> PreTrainedTokenizerBase:
    """A model's tokenizer alone."""
    path = model_path(spec)
    with quiet(), one_line(spec, path):
        return AutoTokenizer.from_pretrained(path, **hub_arguments(spec))
