"""The contract of a method (methods/types.py), on a tiny model of random weights in fp64: what it emits, and its guarantee."""

from collections.abc import Callable, Iterator
from typing import Any, cast, get_args

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness.build import Models
from harness.contracts.base import Finding, attempt, expect
from harness.experiment import DrafterSpec, MethodSpec
from harness.models import LoadedModel
from methods.autoregressive import Autoregressive
from methods.goodness import FALSE_ALARM, sampled_fits
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.types import Generation, Guarantee, Inputs, Method, Stop

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0)
VOCAB, LENGTH, NUM_SAMPLES = 12, 12, 300
PROMPTS = ((3,), (1, 2, 3, 1, 2), (5, 0))
Factory = Callable[[MethodSpec, LoadedModel, Models], Method]


def check_method(name: str, make: Factory) -> Iterator[Finding]:
    target = tiny_model()
    spec = MethodSpec(name=name, drafter=DrafterSpec(kind="copy"), gamma=3)

    def made() -> Method:
        return make(spec, target, Models())

    found = attempt("is made of an experiment's method and declares its guarantee", lambda: _declares(made()))
    yield found
    if not found.kept:
        return
    guarantee = made().guarantee
    yield attempt("emits what was asked for", lambda: _emits(made(), target))
    if guarantee != "lossy":
        yield attempt("greedy output is plain decoding's", lambda: _greedy(made(), target))
    yield attempt("draws from the numbers that it is given", lambda: _repeats(made(), target))
    if guarantee != "lossy":
        yield attempt("sampled output has the target's law", lambda: _sampled(made(), target))


def tiny_model() -> LoadedModel:
    """A Llama of two layers that knows nothing and has no tokenizer: a method works on ids."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.6,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = LlamaForCausalLM(config).double().eval().requires_grad_(False)
    return LoadedModel(
        name="tiny",
        path="",
        stack=stack_for(network),
        tokenizer=cast(Any, None),
        is_encoder_decoder=False,
        eos_token_ids=(),
        num_parameters=sum(one.numel() for one in network.parameters()),
        size_bytes=0,
    )


def _declares(method: Method) -> str:
    guarantee = getattr(method, "guarantee", None)
    expect(guarantee in get_args(Guarantee), f"guarantee {guarantee!r}: expected one of {', '.join(get_args(Guarantee))}")
    expect(isinstance(method, Method), "has no generate(target, inputs, sampling, uniforms, stop, clock)")
    return str(guarantee)


def _rows(
    method: Method, target: LoadedModel, prompts: tuple[tuple[int, ...], ...], sampling: Sampling, ends: frozenset[int]
) -> list[Generation]:
    stop = Stop(max_new_tokens=LENGTH, token_ids=ends)
    return method.generate(target.session(), Inputs(prompts), sampling, Uniforms(range(len(prompts)), LENGTH), stop)


def _plain(target: LoadedModel, ends: frozenset[int] = frozenset()) -> list[list[int]]:
    return [row.tokens for row in _rows(Autoregressive(), target, PROMPTS, GREEDY, ends)]


def _emits(method: Method, target: LoadedModel) -> str:
    ends = frozenset({_plain(target)[0][LENGTH // 2]})
    for stopping in (frozenset(), ends):
        rows = _rows(method, target, PROMPTS, GREEDY, stopping)
        expect(len(rows) == len(PROMPTS), f"{len(rows)} rows for {len(PROMPTS)} prompts")
        for row in rows:
            ended = bool(row.tokens) and row.tokens[-1] in stopping
            expect(ended or len(row.tokens) == LENGTH, f"stops after {len(row.tokens)} of {LENGTH} tokens")
            expect(row.stop_reason == ("eos" if ended else "length"), f"stop_reason {row.stop_reason!r} after {row.tokens}")
            expect(not set(row.tokens[:-1]) & stopping, f"goes on behind a stopping token: {row.tokens}")
            emitted = sum(step.emitted for step in row.steps)
            expect(emitted == len(row.tokens), f"its steps say {emitted} tokens, its output has {len(row.tokens)}")
    return f"{2 * len(PROMPTS)} outputs"


def _greedy(method: Method, target: LoadedModel) -> str:
    expected = _plain(target)
    batch = [row.tokens for row in _rows(method, target, PROMPTS, GREEDY, frozenset())]
    alone = [_rows(method, target, (prompt,), GREEDY, frozenset())[0].tokens for prompt in PROMPTS]
    for where, found in (("in a batch", batch), ("alone", alone)):
        for prompt, tokens, plain in zip(PROMPTS, found, expected, strict=True):
            expect(tokens == plain, f"prompt {prompt} {where}: {tokens}; plain decoding gives {plain}")
    return f"{2 * len(PROMPTS)} outputs"


def _repeats(method: Method, target: LoadedModel) -> None:
    torch.manual_seed(0)
    first = [row.tokens for row in _rows(method, target, PROMPTS, DRAWN, frozenset())]
    torch.manual_seed(1)
    again = [row.tokens for row in _rows(method, target, PROMPTS, DRAWN, frozenset())]
    expect(first == again, "other tokens from the same seeds: it draws random numbers of its own")


def _sampled(method: Method, target: LoadedModel) -> str:
    fits = sampled_fits(method, target.session(), (1, 2, 1), DRAWN, 0, range(NUM_SAMPLES), num_positions=3)
    failed = [name for name, fit in fits.items() if not fit.passes(FALSE_ALARM / len(fits))]
    expect(not failed, f"does not fit the target's law at {', '.join(failed)}")
    return f"{NUM_SAMPLES} samples fit at {', '.join(fits)}"
