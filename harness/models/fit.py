"""Models before they are loaded (their size), those that a process loaded, which two decode together, and parts that draft."""

import sys
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.errors import UsageError
from harness.core.experiment import ZOO, ModelSpec
from harness.models.files import (
    converted_folder,
    hub_size,
    load_config,
    local_folder,
    model_path,
    num_weights,
    one_line,
    zoo_model_folder,
)
from harness.models.loading import LoadedModel, load_model
from harness.models.translation import part_of, translation_of
from harness.zoo.cache import read_facts
from harness.zoo.networks import num_parameters
from harness.zoo.recipes import Scale, recipe_for
from methods.errors import InputError
from methods.models.checkpoint import KEPT_TOKENS
from methods.models.general import GENERAL
from methods.options import NGRAM_TABLE
from methods.ppd.heads import TrainedHeads, load_heads
from methods.session import ModelSession
from methods.specdec.blockwise import BlockwiseHeads, load_blockwise
from methods.specdec.stack import BlockStack
from methods.speculative.ngram import NGramTable
from methods.speculative.translation import Translation
from methods.static import Room, StaticSession

BYTES_PER_WEIGHT = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
NARROW_BYTES = {None: 0, "bf16": 2, "int8": 1}  # of the second copy that a rounded model has
SAMPLE = "Two dogs didn't run over 15 hills; they slept."  # cut by both tokenizers of a pair
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


class _Size(NamedTuple):
    """The size of a model in weights and bytes. None where that cannot be known without loading or reaching it."""

    num_parameters: int | None
    download_bytes: int | None
    memory_bytes: int | None
    gated: bool = False


def estimate(spec: ModelSpec, dtype: str = "float32", scale: Scale = "toy", source: str = "toy") -> _Size:
    """Parameters and bytes without loading: from the recipe, from the files' headers, or from the Hub's listing."""
    count: int | None
    download: int | None
    if spec.zoo_name is not None:
        count, download, gated = num_parameters(recipe_for(spec.zoo_name, scale, source)), 0, False
    elif (folder := converted_folder(spec) or local_folder(spec.base)) is not None:
        with one_line(spec, str(folder)):
            count, download, gated = num_weights(folder), 0, False
    else:
        count, download, gated = hub_size(spec)
    each = BYTES_PER_WEIGHT[dtype] + NARROW_BYTES[spec.rounding]
    return _Size(count, download, None if count is None else count * each, gated)


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


def check_pair(target: LoadedModel, draft: LoadedModel) -> None:
    """UsageError, naming both sides, unless the draft's tokens mean to the target what they mean to the draft."""
    check_kinds(target, draft)
    remedy = "choose models that share a tokenizer, or give --drafter tli, which drafts with the tokens that both have"
    if target.vocab_size != draft.vocab_size and not kept_tokens(draft):
        raise _differ("vocabularies", target, draft, (f"{target.vocab_size} tokens", draft.vocab_size), remedy)
    theirs, ours = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if theirs != ours:
        token = min(token for token in {**theirs, **ours} if theirs.get(token) != ours.get(token))
        numbered = [f"token {token!r} as {vocab.get(token, 'none')}" for vocab in (theirs, ours)]
        raise _differ("tokenizers", target, draft, (numbered[0], numbered[1]), remedy)
    for name in SPECIAL_IDS:
        ids = getattr(target.tokenizer, name), getattr(draft.tokenizer, name)
        if ids[0] != ids[1]:
            raise _differ("special tokens", target, draft, (f"{name} {ids[0]}", f"{name} {ids[1]}"), remedy)


def _note_other_cuts(target: LoadedModel, draft: LoadedModel) -> None:
    """Say so where two tokenizers of the same tokens cut a text differently: one of them may have lost a part."""
    ours, theirs = (model.encode(SAMPLE) for model in (target, draft))
    if ours != theirs:
        print(
            f"foretoken: note: tokenizers of target {target.name} and draft {draft.name} have the same tokens and cut a text "
            f"into {len(ours)} and {len(theirs)} of them, or into others; the target's are used; is one of them damaged?",
            file=sys.stderr,
        )


def kept_tokens(model: LoadedModel) -> list[int]:
    """Return the target's tokens that a draft knows, in its order; empty for a model that knows all of its tokenizer's."""
    return list(getattr(model.stack.model.config, KEPT_TOKENS, None) or ())


def knows_all_tokens(draft: ModelSpec) -> bool:
    """Tell a draft that knows all of its tokenizer's tokens by its config alone; models of the zoo do."""
    return draft.zoo_name is not None or not getattr(load_config(draft), KEPT_TOKENS, None)


def check_kinds(target: LoadedModel, draft: LoadedModel) -> None:
    """UsageError, naming both sides, unless one prompt is read by both."""
    kinds = {True: "an encoder-decoder", False: "a decoder-only model"}
    own = kinds[target.is_encoder_decoder], kinds[draft.is_encoder_decoder]
    if own[0] != own[1]:
        raise _differ("kinds", target, draft, own, "choose two of one kind")
    windows = [None if model.listener is None else model.listener.settings for model in (target, draft)]
    if windows[0] != windows[1]:
        shown = _settings(windows[0]), _settings(windows[1])
        raise _differ("features", target, draft, shown, "choose two that hear alike")


def _differ(what: str, target: LoadedModel, draft: LoadedModel, pair: tuple[object, object], remedy: str) -> UsageError:
    return UsageError(f"{what} differ: target {target.name} has {pair[0]}, draft {draft.name} has {pair[1]}; {remedy}")


def _settings(settings: dict[str, Any] | None) -> str:
    return "no ears" if settings is None else ", ".join(f"{name} {value}" for name, value in settings.items())


def fits(model: LoadedModel, num_prompt: int, num_new: int) -> bool:
    """Tell if a prompt and its output fit a model's position limit. A draft may have a smaller limit than its target."""
    stack = model.stack
    if model.is_encoder_decoder:
        return _within(num_prompt, stack.source_limit) and _within(num_new, stack.position_limit)
    return _within(num_prompt + num_new, stack.position_limit)


def _within(count: int, limit: int | None) -> bool:
    return limit is None or count <= limit


def load_ngrams(spec: ModelSpec, target: LoadedModel) -> NGramTable:
    """A counted table, from the zoo or a folder (or file) of one. UsageError unless it has the target's vocabulary."""
    path = Path(model_path(spec))
    try:
        table = NGramTable.load(path / NGRAM_TABLE if path.is_dir() else path)
    except InputError as error:
        raise UsageError(str(error)) from error
    if table.vocab_size != target.vocab_size:
        raise UsageError(
            f"n-gram table {spec.name} has {table.vocab_size} tokens and target {target.name} {target.vocab_size}; "
            "expected the same vocabulary: count the table with the target's tokenizer"
        )
    return table


def load_early_heads(spec: ModelSpec, target: LoadedModel) -> TrainedHeads:
    """Trained early heads, from the zoo, the profile pocket or a folder. UsageError unless they are of the target's shape."""
    try:
        folder = zoo_model_folder(spec) if spec.zoo_name is not None else converted_folder(spec) or Path(spec.name)
        return load_heads(folder, target.stack)
    except InputError as error:
        raise UsageError(f"heads {spec.name} for {target.name}: {error}") from error


def load_block_heads(spec: ModelSpec, target: LoadedModel) -> BlockwiseHeads:
    """Blockwise heads, from the zoo or a folder. UsageError unless they are of the target's width, and the zoo's its own."""
    _check_base(spec, target)
    try:
        return load_blockwise(zoo_model_folder(spec) if spec.zoo_name is not None else Path(spec.name), target.stack)
    except InputError as error:
        raise UsageError(f"draft {spec.name} for {target.name}: {error}") from error


def _check_base(spec: ModelSpec, target: LoadedModel) -> None:
    """UsageError for the zoo's blockwise heads on another model of the zoo than that which they were trained on."""
    if not (spec.zoo_name is not None and ModelSpec(name=target.name).zoo_name is not None):
        return
    base = read_facts(zoo_model_folder(spec)).get("base")
    if base is None:
        raise no_block_heads(spec.name)
    name, revision = str(base.get("name")), base.get("revision")
    if Path(target.path).name != f"{name.removeprefix(ZOO)}-{revision}":
        raise foreign_heads(spec.name, target.name, name)


def no_block_heads(name: str) -> UsageError:
    return UsageError(f"draft {name}: it holds no blockwise heads; expected zoo:specdec-blockwise, or their folder")


def foreign_heads(name: str, target: str, base: str) -> UsageError:
    return UsageError(f"draft {name} for {target}: its heads were trained on {base}; expected that target")


@dataclass
class Models:
    """Every model that the experiments of one process need, loaded once, on one device, in one dtype and with one attention.

    ``room`` is what sessions of fixed shapes are laid out for; None: all sessions grow as they need.
    """

    device: str = "cpu"
    dtype: str = "float32"
    attention: str | None = None
    room: Room | None = None
    _loaded: dict[ModelSpec, LoadedModel] = field(default_factory=dict)
    _widened: dict[str, Any] = field(default_factory=dict)
    _compared: set[ModelSpec] = field(default_factory=set)
    _translations: dict[tuple[str, str], Translation] = field(default_factory=dict)

    @cached_property
    def in_fp64(self) -> "Models":
        """The same models in fp64, with the attention that transformers chooses; kept, as these are."""
        return Models(self.device, "float64")

    def get(self, spec: ModelSpec) -> LoadedModel:
        """Return a language model; UsageError for a block drafter."""
        model = self._load(spec)
        check_role(spec.name, is_block=isinstance(model.stack, BlockStack), drafts_blocks=False)
        if kept_tokens(model):
            raise UsageError(f"model {spec.name}: a draft that knows a part of its vocabulary alone; expected it as --draft")
        return model

    def draft(
        self, spec: ModelSpec, target: LoadedModel, drafts_blocks: bool | None = None, translated: bool = False
    ) -> LoadedModel:
        """Return a model that drafts for ``target``: refused if their kinds differ, its role, or, unless drafts are
        ``translated``, their vocabularies."""
        draft = self._load(spec)
        (check_kinds if translated else check_pair)(target, draft)
        if not translated and spec not in self._compared:
            self._compared.add(spec)
            _note_other_cuts(target, draft)
        if drafts_blocks is not None:
            check_role(spec.name, is_block=isinstance(draft.stack, BlockStack), drafts_blocks=drafts_blocks)
        return draft

    def session(self, model: LoadedModel, most_new: int) -> ModelSession:
        """Return a new session; one of fixed shapes, for passes of up to so many tokens, where there is room for it."""
        return model.session() if self.room is None else StaticSession(model.stack, self.room, most_new)

    def translation(self, target: LoadedModel, draft: LoadedModel) -> Translation:
        """Return what a draft of another vocabulary, or of a part of the target's, shares with it; kept from then on."""
        pair, kept = (target.name, draft.name), kept_tokens(draft)
        if pair not in self._translations:
            self._translations[pair] = part_of(target, draft, kept) if kept else translation_of(target, draft)
        return self._translations[pair]

    def widened(self, target: LoadedModel) -> Any:
        """Return transformers' model of a target with the very weights that run, in fp32; kept from then on."""
        if target.name not in self._widened:
            wide = deepcopy(target.stack.model).float()
            if self.attention is not None and isinstance(target.stack, GENERAL):
                wide.set_attn_implementation("eager")  # others may have no fp32
            self._widened[target.name] = wide
        return self._widened[target.name]

    def _load(self, spec: ModelSpec) -> LoadedModel:
        if spec not in self._loaded:
            self._loaded[spec] = load_model(spec, device=self.device, dtype=self.dtype, attention=self.attention)
        return self._loaded[spec]
