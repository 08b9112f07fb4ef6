"""Load models by name (the zoo's, a local folder's, or the Hub's) as decoder stacks with their tokenizers.

``names.pin_model`` says what a name means today without loading weights; ``load_model`` loads exactly that.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
import transformers
from jaxtyping import Float
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from harness.core import products
from harness.core.errors import UsageError
from harness.core.experiment import WIDE_DTYPES, ModelSpec
from harness.core.files import parsed
from harness.core.messages import first_line
from harness.models.files import explain, hub_arguments, load_config, model_path, num_weights, one_line, verify_fetched
from harness.models.quantised import check_quantised, is_quantised
from harness.zoo.cache import quiet
from kernels.products.matrix import TORCH
from methods.errors import InputError
from methods.models import STACKS, stack_for
from methods.models.base import Stack
from methods.models.checkpoint import KEPT_TOKENS, load_dequantised, load_whole
from methods.models.general import GENERAL
from methods.models.weights import round_weights
from methods.models.whisper import WhisperStack
from methods.session import ModelSession
from methods.specdec.network import load_network
from methods.specdec.stack import MODEL_TYPES, BlockStack
from methods.spread import SpreadSession, spread_stack
from methods.types import Inputs
from tasks.base import SAMPLE_RATE, Example, Recording
from tasks.sound import windows_of

SETTINGS = ("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft")  # of windows of recordings
HEARS = "whisper"
# What every Whisper was trained with: samples of a frame, silence behind a short recording, and no noise of its own.
EXTRACTED = {"sampling_rate": SAMPLE_RATE, "n_fft": 400, "padding_side": "right", "padding_value": 0, "dither": 0}
MOST_HOP = 2**12  # samples from one frame to the next
BEGIN, NO_TIMESTAMPS = "<|startoftranscript|>", "<|notimestamps|>"  # as all of OpenAI's tokenizers name them
TRIED_TEXT = "a B, 12.\n\u00e9 \u8a9e"
SPACES = ("\u0120", "\u2581")  # as tokenizers write a space inside a token; a decoder takes them away
LEAST_KNOWN = 0.5  # of a network's tokens that its tokenizer knows; sizes are rounded up by some per cent, not to the double
MOST_TIMES = 1000  # that a chat template may repeat a text
TEMPLATE_S, MOST_CHARACTERS = 5, 1_000_000  # of a chat template: its time, and what it may add to a text
TRIED_TOKENS = 32  # of the prompt that a model is tried with
HALF = (torch.float16, torch.bfloat16)
REREAD, TRIED_PROMPT = 8, 3  # tokens of a text that a model reads in parts and whole; its prompt's
CPU_BYTES = 1 << 50  # no limit: where a CPU is asked for, nothing is laid anywhere else


@dataclass(frozen=True, eq=False)
class Listener:
    """A model's feature extractor. ``label`` names the model in errors."""

    extractor: Any
    label: str

    def __post_init__(self) -> None:
        if self.extractor.sampling_rate != SAMPLE_RATE:
            raise UsageError(
                f"model {self.label}: its feature extractor wants {self.extractor.sampling_rate} Hz; expected {SAMPLE_RATE}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.extractor, name) for name in SETTINGS}

    def windows(self, recording: Recording, opening: tuple[int, ...]) -> tuple[Inputs, ...]:
        """One row for every window. Raises DataError for a recording that cannot be read."""
        cut = windows_of(recording.sound().samples, self.extractor.n_samples)
        return tuple(Inputs((opening,), self.features(samples)) for samples in cut)

    def features(self, samples: np.ndarray) -> Float[Tensor, "1 mels frames"]:
        return self.extractor(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features


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
        return SpreadSession(self.stack) if self.stack.parts else ModelSession(self.stack)

    def encode(self, text: str) -> tuple[int, ...]:
        """A prompt, with the special tokens that this model's prompts have."""
        return tuple(self.tokenizer(text, verbose=False).input_ids)

    def encode_chat(self, text: str) -> tuple[int, ...]:
        """One user's turn in the tokenizer's chat template, ready for the answer."""
        if not self.tokenizer.chat_template:
            raise UsageError(f"chat_template: {self.name} has none; expected a chat model, or leave the flag out")
        turns = [{"role": "user", "content": text}]
        try:
            check_template(self.tokenizer.get_chat_template())
            with _at_most(TEMPLATE_S):
                rendered = str(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
            if len(rendered) > len(text) + MOST_CHARACTERS:
                raise ValueError(f"it makes {len(rendered)} characters of {len(text)}")
            if text.strip() not in rendered:  # many templates trim it
                raise ValueError("it leaves the text out")
            return self.encode_continuation(rendered)
        except Exception as error:  # a template is a program of whoever made the checkpoint
            raise UsageError(
                f"chat_template of {self.name}: {type(error).__name__}: {' '.join(str(error).split())}; correct it in the "
                "folder's chat_template.jinja or tokenizer_config.json, or leave the flag out"
            ) from error

    def encode_continuation(self, text: str) -> tuple[int, ...]:
        """Encode a text that follows a prompt (or is an encoder-decoder's output), without special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """TimeoutError where the body takes longer. A process's main thread alone can be told so; elsewhere there is no limit."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def load_model(spec: ModelSpec, *, device: str = "cpu", dtype: str = "float32", attention: str | None = None) -> LoadedModel:
    """Load a pinned model; one that is rounded is loaded in fp32, then rounded.

    ``attention`` names one of transformers' for a family without a stack of its own; others do not read it.

    Raises:
        UsageError: the model is missing, gated, unreachable or unreadable, no stack runs it, or it has no such attention.
    """
    check_rounding(spec, dtype)
    path = model_path(spec)
    verify_fetched(spec)
    config = load_config(spec)
    with quiet(), one_line(spec, path):
        placed = _placement(spec, device)
        first = torch.float32 if spec.rounding is not None else getattr(torch, dtype)
        chosen: dict[str, Any] = {}
        if attention is not None and config.model_type not in STACKS:
            check_has_attention(spec, config, dtype, attention)
            chosen = {"attn_implementation": attention}
        model, tokenizer = _load(spec, path, config, first, placed | chosen)
        verify_fetched(spec)  # what was fetched only now
        hears, given = config.model_type == HEARS, hub_arguments(spec)
        extractor = _extractor(path, config, given) if hears else None
        if not placed:
            model.to(device)
    try:
        model.eval().requires_grad_(False)
        if spec.rounding is not None:
            round_weights(model, spec.rounding)
            model.to(getattr(torch, dtype))
        stack = _stack(spec, model, config, device, bool(placed))
        ends = [eos_ids(model.generation_config), eos_ids(config)]
        _check_ends(spec, (*ends[0], *ends[1]), stack.vocab_size)
        parameters = list(model.parameters())
        loaded = LoadedModel(
            name=spec.name,
            path=path,
            stack=stack,
            tokenizer=tokenizer,
            is_encoder_decoder=bool(config.is_encoder_decoder),
            # As transformers' own loop; a config that was written without any has its class's, a word of many a vocabulary.
            eos_token_ids=ends[0] or ends[1],
            num_parameters=sum(p.numel() for p in parameters),
            size_bytes=sum(p.numel() * p.element_size() for p in parameters),
            listener=None if extractor is None else Listener(extractor, spec.name),
        )
        _check_kept_tokens(spec, config, stack.vocab_size)
        _check_tokenizer(loaded)
        if not isinstance(stack, BlockStack):
            _try(loaded)
        return loaded
    except UsageError:
        raise
    except InputError as error:
        raise UsageError(f"model {spec.name}: {error}") from error
    except Exception as error:  # settings that only the network itself runs into
        raise explain(spec, path, error) from error


def _extractor(path: str, config: PreTrainedConfig, given: dict[str, Any]) -> Any:
    """A Whisper's feature extractor. ValueError for settings that do not make what the network hears; some would fill all
    memory with filters and windows, so that they are looked at before."""
    name = "preprocessor_config.json"
    extractor = transformers.WhisperFeatureExtractor
    found = {"hop_length": 160, "chunk_length": 30, **extractor.get_feature_extractor_dict(path, **given)[0]}
    hop, wanted = found["hop_length"], EXTRACTED | {"feature_size": config.num_mel_bins}
    if type(hop) is not int or not 1 <= hop <= MOST_HOP:
        raise ValueError(f"hop_length {hop!r} in its {name}, expected 1 to {MOST_HOP}")
    wanted["chunk_length"] = 2 * config.max_source_positions * hop // SAMPLE_RATE
    for setting, value in wanted.items():
        given_value = found.get(setting, value)
        if type(given_value) is bool or given_value != value:
            raise ValueError(f"{setting} {given_value!r} in its {name}, expected {value!r} for the network of its config.json")
    return extractor.from_pretrained(path, **given)


def _check_kept_tokens(spec: ModelSpec, config: PreTrainedConfig, vocab_size: int) -> None:
    """UsageError for a draft of a part of a vocabulary whose list is not what it was made with: all its tokens but the last."""
    kept, wanted = getattr(config, KEPT_TOKENS, None), "whole numbers in ascending order"
    if kept is None:
        return
    if not isinstance(kept, list):
        found = f"a {type(kept).__name__}"
    elif odd := [one for one in kept if type(one) is not int]:
        found = repr(odd[0])
    elif pair := next((pair for pair in pairwise(kept) if pair[0] >= pair[1]), None):
        found = f"{pair[1]} behind {pair[0]}"
    elif len(kept) != vocab_size - 1:
        found = f"{len(kept)} tokens"
        wanted = f"{vocab_size - 1}: its network has {vocab_size}, and the last stands for all others"
    else:
        return
    raise UsageError(f"model {spec.name}: {KEPT_TOKENS} in its config.json: {found}, expected {wanted}; distil the draft anew")


class _Generation(Extension):
    """The block of a chat template by which transformers marks an assistant's words; here it is its content alone."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def check_template(template: str) -> None:
    """ValueError for a chat template whose numbers alone may take all time or memory within one step, which no limit stops."""
    parsed_as = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", _Generation])
    for node in parsed_as.parse(template).find_all((nodes.Pow, nodes.Mul)):
        numbers = [side.value for side in (node.left, node.right) if isinstance(side, nodes.Const)]
        if isinstance(node, nodes.Pow) or any(isinstance(one, int) and one > MOST_TIMES for one in numbers):
            raise ValueError(f"line {node.lineno} raises a number to a power, or repeats a text more than {MOST_TIMES} times")


def _check_tokenizer(model: LoadedModel) -> None:
    """UsageError for a tokenizer that is another network's, as far as the numbers of tokens and a Whisper's forced ones tell.

    A draft of a part of its target's vocabulary has the whole tokenizer. Added tokens may lie behind the network's.
    """
    stack, tokenizer = model.stack, model.tokenizer
    size = max(stack.vocab_size, stack.input_vocab_size)
    vocabulary, added = tokenizer.get_vocab(), tokenizer.get_added_vocab()
    ordinary = {token: number for token, number in vocabulary.items() if token not in added}
    last = max(ordinary, key=lambda token: ordinary[token], default="")
    said = f"model {model.name}: its tokenizer "
    remedy = "take tokenizer.json and tokenizer_config.json from where its weights are from"
    if getattr(stack.model.config, KEPT_TOKENS, None) is None and ordinary.get(last, 0) >= size:
        raise UsageError(f"{said}numbers {last!r} as {ordinary[last]}, its network has {size} tokens; {remedy}")
    tried = tokenizer(TRIED_TEXT, add_special_tokens=False).input_ids
    if not tried:
        raise UsageError(f"{said}makes no tokens of a text (post_processor in tokenizer.json); {remedy}")
    decoded = model.decode(tried)
    if any(mark in decoded for mark in SPACES):
        raise UsageError(f"{said}makes {decoded!r} of the text {TRIED_TEXT!r} (decoder in tokenizer.json); {remedy}")
    if len(vocabulary) < LEAST_KNOWN * size:
        raise UsageError(f"{said}has {len(vocabulary)} tokens, its network {size}; {remedy}")
    kept = dict(enumerate(getattr(stack.model.config, KEPT_TOKENS, None) or ()))
    opening = [kept.get(token, token) for token in model.opening]  # as the tokenizer numbers them
    for word, place, setting in ((BEGIN, 0, "decoder_start_token_id"), (NO_TIMESTAMPS, -1, "no_timestamps_token_id")):
        if opening and word in vocabulary and opening[place] != vocabulary[word]:
            raise UsageError(
                f"{said}numbers {word!r} as {vocabulary[word]}, the forced tokens are {opening}; correct {setting} "
                "in its generation_config.json, or take that file and the tokenizer's from the checkpoint that it was made from"
            )


def _try(model: LoadedModel) -> None:
    """Decode one token. InputError for logits that are NaN or all alike: settings spoil every output, and are found here."""
    stack, session = model.stack, model.session()
    num_tokens = min(TRIED_TOKENS, max(1, stack.prompt_limit or TRIED_TOKENS))
    # Different tokens, from 1 on: token 0 may be padding, whose embedding is zero where a model is untrained.
    prompt = model.opening or tuple(1 + place % max(1, model.vocab_size - 1) for place in range(num_tokens))
    heard = None if model.listener is None else model.listener.features(np.zeros(SAMPLE_RATE, np.float32))
    first = session.prefill(Inputs((prompt,), heard))
    logits = session.extend(torch.tensor([first], device=stack.device))[0, -1]
    emitted = logits[logits != float("-inf")]
    if emitted.isnan().any() or emitted.unique().numel() < 2:
        raise InputError(
            f"its logits are {'NaN' if emitted.isnan().any() else 'the same for every token'}; correct its config.json, or its "
            "weights (fp16 overflows above 65504)"
        )
    limit = stack.position_limit
    is_comparable = isinstance(stack, GENERAL) or stack.dtype not in HALF  # in half precision two ways may round far apart
    if is_comparable and model.listener is None and not stack.parts and (limit is None or limit > REREAD):
        _check_passes(stack, session)


def _check_passes(stack: Stack, session: ModelSession) -> None:
    """InputError for a model of which a text in parts does not give what transformers' own pass over all of it does."""
    apart = reread_distance(stack, session)
    if not apart <= max(torch.finfo(stack.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5:  # fp64 has parts in fp32 there
        where, remedy = (
            ("behind a shortened cache ", "no method can use it")
            if isinstance(stack, GENERAL)
            else ("", "its config.json or our pass is wrong")
        )
        raise InputError(
            f"model type {stack.model.config.model_type!r}: its logits {where}are {apart:.1g} off those of one pass of "
            f"transformers over the text: {remedy}; choose another model"
        )


@torch.inference_mode()
def reread_distance(stack: Stack, session: ModelSession) -> float:
    """Return how far logits of a text in parts are from those of transformers' own pass over all of it, over the largest.

    Of a family without a stack of its own the cache is shortened between: where it keeps a state, none can be used. Of others
    settings say what our stack does not read. The text's tokens are spread over the vocabulary: its first ones are often
    special ones, behind which rounding grows a hundredfold (SmolLM2).
    """
    size = min(stack.vocab_size, stack.input_vocab_size)
    spread = max(1, size // (2 * REREAD))
    text, other = ([(step * place + 1) * spread % size for place in range(REREAD)] for step in (1, 2))
    prompt, more = text[:TRIED_PROMPT], text[TRIED_PROMPT:]
    [first] = session.prefill(Inputs((tuple(prompt),)))
    is_general = isinstance(stack, GENERAL)
    if is_general:
        session.extend(torch.tensor([[first, *other[TRIED_PROMPT:]]], device=stack.device))
        session.rewind([len(more)])
    else:
        session.extend(torch.tensor([[first]], device=stack.device))
    given = session.extend(torch.tensor([more], device=stack.device))[0]
    decoded = {"decoder_input_ids": torch.tensor([[first, *more]], device=stack.device)} if stack.is_encoder_decoder else {}
    whole = torch.tensor([prompt if stack.is_encoder_decoder else text], device=stack.device)
    wanted = stack.model(input_ids=whole, **decoded).logits[0, -len(more) :]
    return float((given - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny))


def check_rounding(spec: ModelSpec, dtype: str) -> None:
    """UsageError for a rounded model in a dtype that does not hold every number that it is rounded to."""
    if spec.rounding is not None and dtype not in WIDE_DTYPES:
        raise UsageError(
            f"dtype {dtype!r} of model {spec.name}: rounded weights are multiplied in {' or '.join(WIDE_DTYPES)}; "
            f"choose one of them, or a model and a drafter without rounded weights"
        )


def _placement(spec: ModelSpec, device: str) -> dict[str, Any]:
    """The arguments of from_pretrained that lay a model on all devices of a kind; none for a model on one device."""
    if spec.device_map is None:
        return {}
    if spec.device_map != "auto":
        raise UsageError(f"device_map {spec.device_map!r} of model {spec.name}: expected auto, or none")
    if find_spec("accelerate") is None:
        raise UsageError("device_map 'auto': package accelerate is not installed; run: .venv/bin/pip install -e '.[spread]'")
    return {"device_map": spec.device_map} | ({"max_memory": {"cpu": CPU_BYTES}} if device == "cpu" else {})


def _stack(spec: ModelSpec, model: Any, config: PreTrainedConfig, device: str, is_placed: bool) -> Stack:
    choice = products.choice() if device == "cpu" and model.dtype == torch.float32 else TORCH
    choice = replace(choice, rounding=spec.rounding)
    if is_block_drafter(config):
        return BlockStack(model, choice)
    if not is_placed:
        return stack_for(model, choice)
    from accelerate.hooks import remove_hook_from_module

    remove_hook_from_module(model, recurse=True)  # our stacks run the weights themselves
    return spread_stack(model, torch.empty(0, device=device).device)


def _load(
    spec: ModelSpec, path: str, config: PreTrainedConfig, dtype: torch.dtype, more: dict[str, Any]
) -> tuple[Any, PreTrainedTokenizerBase]:
    tokenizer = AutoTokenizer.from_pretrained(path, **hub_arguments(spec))
    tokenizer(TRIED_TEXT)  # some settings are read only now
    if is_block_drafter(config):
        try:
            return load_network(path, dtype), tokenizer
        except InputError as error:
            raise UsageError(f"model {spec.name}: {error}") from error
    kind = _kind(config)
    check_quantised(spec, config)
    _check_size(kind, config, path)
    _check_generation_config(Path(path) / "generation_config.json")
    model = (load_dequantised if is_quantised(config) else load_whole)(kind, path, dtype=dtype, **more, **hub_arguments(spec))
    if spec.untrained:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model.load_state_dict(kind.from_config(config, dtype=dtype).state_dict())
    return model, tokenizer


def _check_generation_config(path: Path) -> None:
    """ValueError for a file that transformers would pass over in silence, although it says where texts end."""
    if path.is_file() and not isinstance(parsed(path.read_bytes()), dict):
        raise ValueError(f"{path.name} is no JSON object")


def _kind(config: PreTrainedConfig) -> Any:
    """Return the class that loads a model, looked up here: transformers imports it where it is named, which takes a second."""
    if config.model_type == HEARS:
        return transformers.AutoModelForSpeechSeq2Seq
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def check_has_attention(spec: ModelSpec, config: PreTrainedConfig, dtype: str, attention: str) -> None:
    """UsageError for an attention that transformers does not have for a family, a dtype or this machine."""
    make = partial(_kind(config).from_config, config, dtype=getattr(torch, dtype))
    with quiet(), one_line(spec, model_path(spec)), torch.device("meta"):
        make()  # what is wrong without it is not its fault
    try:
        with quiet(), torch.device("meta"):
            made = make(attn_implementation=attention)
    except (ImportError, ValueError) as error:
        said = first_line(error).split(". ")[0].rstrip(".")
    else:
        found = made.config.get_text_config(decoder=True)._attn_implementation
        if found == attention:
            return
        said = f"transformers takes {found} in its place"
    raise UsageError(f"attention {attention!r} of model {spec.name}: {said}; choose another, or leave it out")


def _check_size(kind: Any, config: PreTrainedConfig, path: str) -> None:
    """ValueError for a folder whose files hold less than half of the weights that its configuration asks for.

    What they lack would be laid out in memory before it is found missing. Weights that are tied may be in the files once.
    """
    stored = num_weights(Path(path)) if Path(path).is_dir() else None
    if stored is None:
        return
    with torch.device("meta"):
        asked = sum(weight.numel() for weight in kind.from_config(config).parameters())
    if asked > 2 * stored:
        raise ValueError(f"its config.json asks for {asked:,} weights, its files hold {stored:,}")


def is_block_drafter(config: PreTrainedConfig) -> bool:
    """Tell the configuration of a block drafter: a model type that one can be built as, with a block size."""
    return config.model_type in MODEL_TYPES and hasattr(config, "block_size")


def load_tokenizer(spec: ModelSpec) -> PreTrainedTokenizerBase:
    """A model's tokenizer alone."""
    path = model_path(spec)
    with quiet(), one_line(spec, path):
        return AutoTokenizer.from_pretrained(path, **hub_arguments(spec))


def share_vocabulary(target: ModelSpec, draft: ModelSpec) -> bool:
    """Say whether two models number one vocabulary alike; models of the zoo that are paired do."""
    pair = [spec for spec in (target, draft) if spec.zoo_name is None]
    return len(pair) < 2 or load_tokenizer(target).get_vocab() == load_tokenizer(draft).get_vocab()


def eos_ids(source: Any) -> tuple[int, ...]:
    """Return the ids of the end of text that a generation config or a config names, in order, each once, unchecked."""
    ids = getattr(source, "eos_token_id", None)
    found = [] if ids is None else ids if isinstance(ids, list) else [ids]
    return tuple(one for index, one in enumerate(found) if one not in found[:index])


def _check_ends(spec: ModelSpec, ids: tuple[int, ...], vocab_size: int) -> None:
    """UsageError for an end of text that no model of this vocabulary can emit: its texts would never end."""
    if odd := [one for one in ids if type(one) is not int or not 0 <= one < vocab_size]:
        raise UsageError(
            f"model {spec.name}: eos_token_id {odd[0]!r} in its config.json or generation_config.json; expected a token from 0 "
            f"to {vocab_size - 1}: correct it"
        )


def check_task(example: Example, task: str, hears: bool, model: str) -> None:
    """UsageError for a task of speech with a model that reads, and the other way round."""
    if hears and example.audio is None:
        raise UsageError(
            f"task {task!r}: model {model} hears, and this task has no recordings; expected a task such as tedlium"
        )
    if not hears and example.audio is not None:
        raise UsageError(
            f"task {task!r}: it is speech, and model {model} reads; expected a Whisper, such as zoo:whisper-target"
        )
