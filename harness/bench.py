"""Times our loops against transformers' own on the same weights, in one process, interleaved prompt by prompt.

The reference is a second copy of each model, loaded untouched: our sessions lay weights out anew, which would also help it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from harness import zoo
from harness.experiment import ModelSpec
from harness.memory import resident_bytes
from harness.models import LoadedModel, load_model, pin_model, scale_of
from harness.statistics import Estimate, of_sums
from harness.zoo.build import quiet
from methods.autoregressive import Autoregressive
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.speculative.theory import predicted_speedup
from methods.types import Clock, Generation, Inputs, Method, Session, Step, Stop
from tasks import get_task
from tasks.base import PromptStyle

GREEDY = Sampling()
Prompts = Sequence[tuple[int, ...]]
Reference = Any  # a transformers model, whose attributes have no types


@dataclass(frozen=True)
class Row:
    """One line of the benchmark: a ratio with its interval, what it was made of, and the goal it is held against."""

    name: str
    estimate: Estimate
    detail: str
    goal: str
    met: bool

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def as_text(self) -> str:
        spread = "" if self.estimate.low is None else f" [{self.estimate.low:.3f}, {self.estimate.high:.3f}]"
        verdict = "met" if self.met else "MISSED"
        value = f"{self.estimate.value:.3f}{spread} {self.estimate.unit}"
        return f"{self.name:44s} {value} (goal {self.goal}: {verdict}); {self.detail}"


@dataclass(frozen=True)
class Sizes:
    """How much is timed: drafted tokens a round, prompts, repeats of each, generated tokens a prompt."""

    gamma: int
    prompts: int
    repeats: int
    tokens: int


@dataclass(frozen=True)
class Family:
    """Models of the zoo that share a tokenizer, the target first and the smallest draft last, and what prompts them."""

    models: tuple[str, ...]
    task: str


FAMILIES = {
    "llama": Family(("llama-target", "llama-draft-large", "llama-draft-small"), "text"),
    "t5": Family(("t5-xxl", "t5-large", "t5-base", "t5-small"), "wmt-en-de"),
    "gpt": Family(("gpt-target", "gpt-draft"), "text"),
}
MAX_PROMPT = 256
NEAR_TIE = 1e-3  # logits; fp32 sums in another order differ by about 1e-5


@dataclass(frozen=True)
class Pair:
    """A target and a draft with the prompts that both are timed on."""

    name: str
    target: LoadedModel
    draft: LoadedModel
    prompts: Prompts


def reference_model(model: LoadedModel) -> Reference:
    """transformers' own model from the same folder, its weights as it lays them out. It runs past EOS, as ours is told to."""
    kind = AutoModelForSeq2SeqLM if model.is_encoder_decoder else AutoModelForCausalLM
    with quiet():
        reference = kind.from_pretrained(model.path, local_files_only=True).eval()
    reference.generation_config.eos_token_id = None
    reference.generation_config.pad_token_id = 0  # never used, one row at a time; unset it is warned about
    if model.is_encoder_decoder and reference.config.model_type == "t5":
        # generate sizes the decoder's cache by num_layers, the encoder's depth, and fails where the decoder is deeper.
        reference.config.num_layers = max(reference.config.num_layers, reference.config.num_decoder_layers)
    return reference


def ours(method: Method, session: Session, prompt: tuple[int, ...], stop: Stop, clock: Clock | None = None) -> Generation:
    uniforms = Uniforms([0], stop.max_new_tokens + 64)
    return method.generate(session, Inputs((prompt,)), GREEDY, uniforms, stop, clock)[0]


def theirs(reference: Reference, prompt: tuple[int, ...], num_tokens: int, **options: object) -> list[int]:
    """The new tokens alone."""
    ids = torch.tensor([prompt])
    fixed = {"attention_mask": torch.ones_like(ids), "do_sample": False, "num_beams": 1}
    with torch.inference_mode():
        output = reference.generate(ids, max_new_tokens=num_tokens, **fixed, **options)
    return output[0, 1 if reference.config.is_encoder_decoder else len(prompt) :].tolist()


@dataclass(frozen=True)
class Timed:
    """Seconds [calls, prompts] summed over repeats, and what the calls gave: ``results[call][prompt]``, one a repeat."""

    seconds: np.ndarray
    results: list[list[list[Any]]]

    def totals(self, call: int, number: Callable[[Any], float]) -> np.ndarray:
        """[prompts] a number of each result, summed over repeats."""
        return np.array([sum(map(number, results)) for results in self.results[call]], dtype=np.float64)


def interleaved(calls: Sequence[Callable[[int], Any]], num_prompts: int, repeats: int) -> Timed:
    """Every call on every prompt, in turns whose order rotates; one untimed round first."""
    for call in calls:
        call(0)
    seconds = np.zeros((len(calls), num_prompts))
    results: list[list[list[Any]]] = [[[] for _ in range(num_prompts)] for _ in calls]
    for repeat in range(repeats):
        for prompt in range(num_prompts):
            for offset in range(len(calls)):
                index = (repeat + prompt + offset) % len(calls)
                start = time.perf_counter()
                result = calls[index](prompt)
                seconds[index, prompt] += time.perf_counter() - start
                results[index][prompt].append(result)
    return Timed(seconds, results)


def ratio_of_rates(seconds: np.ndarray, counts: np.ndarray, unit: str) -> Estimate:
    """Seconds per count of arm 0 over that of arm 1 ([2, prompts] each), totals over prompts, with a paired bootstrap."""
    columns = {"seconds": seconds.T, "counts": counts.T}

    def ratio(sums: dict[str, np.ndarray], n: float) -> float:
        rates = sums["seconds"] / sums["counts"]
        return float(rates[0] / rates[1])

    estimate = of_sums(columns, ratio, unit)
    assert estimate is not None
    return estimate


def compare_outputs(
    reference: Reference, prompts: Prompts, our_tokens: Sequence[list[int]], their_tokens: Sequence[list[int]]
) -> tuple[str, bool]:
    """How many outputs are equal, in words, and whether every other one parts at a near-tie of the reference's logits."""
    pairs = list(zip(prompts, our_tokens, their_tokens, strict=True))
    differing = [pair for pair in pairs if pair[1] != pair[2]]
    ties = sum(_parts_at_tie(reference, *pair) for pair in differing)
    text = f"{len(pairs) - len(differing)} of {len(pairs)} outputs equal"
    text += f", {ties} part at a near-tie" if ties else ""
    unexplained = len(differing) - ties
    return text + (f", {unexplained} DIFFER" if unexplained else ""), unexplained == 0


@torch.inference_mode()
def _parts_at_tie(reference: Reference, prompt: tuple[int, ...], mine: list[int], other: list[int]) -> bool:
    """Whether the reference's logits of the first two tokens that differ are within what rounding can turn over."""
    if len(mine) != len(other):
        return False
    at = next(index for index, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
    if reference.config.is_encoder_decoder:
        start = reference.generation_config.decoder_start_token_id
        logits = reference(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *mine[:at]]])).logits
    else:
        logits = reference(torch.tensor([[*prompt, *mine[:at]]])).logits
    return abs(float(logits[0, -1, mine[at]] - logits[0, -1, other[at]])) < NEAR_TIE


def bench_autoregressive(model: LoadedModel, prompts: Prompts, num_tokens: int, repeats: int, deep: bool) -> Row:
    """Our plain loop against ``generate``: seconds a token over seconds a token, both past any EOS."""
    reference, session, method = reference_model(model), model.session(), Autoregressive()
    stop = Stop(max_new_tokens=num_tokens)
    timed = interleaved(
        [
            lambda i: ours(method, session, prompts[i], stop).tokens,
            lambda i: theirs(reference, prompts[i], num_tokens),
        ],
        len(prompts),
        repeats,
    )
    counts = np.stack([timed.totals(0, len), timed.totals(1, len)])
    estimate = ratio_of_rates(timed.seconds, counts, "ours / generate")
    per_token = timed.seconds.sum(1) / counts.sum(1) * 1e3
    equal, explained = compare_outputs(reference, prompts, *_first_results(timed))
    detail = f"{per_token[0]:.2f} ms a token, generate {per_token[1]:.2f} ms; {equal}"
    within = estimate.value < 1.0 if deep else estimate.value <= 1.03
    return Row(f"autoregressive {model.name}", estimate, detail, "< 1.0" if deep else "<= 1.03", within and explained)


def _first_results(timed: Timed) -> tuple[list[Any], list[Any]]:
    """Of both calls, each prompt's first result."""
    mine, other = ([results[0] for results in by_prompt] for by_prompt in timed.results)
    return mine, other


def bench_round(pair: Pair, gamma: int, num_tokens: int, repeats: int) -> Row:
    """Our round of draft and verify against transformers' assisted generation: seconds a round over seconds a target run."""
    target, draft = reference_model(pair.target), reference_model(pair.draft)
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    runs = [0]

    def count(*_: object) -> None:
        runs[0] += 1

    hook = target.register_forward_hook(count)
    session, method, stop = pair.target.session(), speculative(pair.draft, gamma), Stop(max_new_tokens=num_tokens)

    def our_run(i: int) -> tuple[list[int], int]:
        generation = ours(method, session, pair.prompts[i], stop)
        return generation.tokens, len(generation.steps)

    def their_run(i: int) -> tuple[list[int], int]:
        before = runs[0]
        return theirs(target, pair.prompts[i], num_tokens, assistant_model=draft), runs[0] - before

    timed = interleaved([our_run, their_run], len(pair.prompts), repeats)
    hook.remove()
    counts = np.stack([timed.totals(call, lambda result: result[1]) for call in (0, 1)])
    estimate = ratio_of_rates(timed.seconds, counts, "ours / assisted generation")
    per_round = timed.seconds.sum(1) / counts.sum(1) * 1e3
    mine, other = ([tokens for tokens, _ in results] for results in _first_results(timed))
    equal, explained = compare_outputs(target, pair.prompts, mine, other)
    detail = f"{per_round[0]:.2f} ms a round, assisted {per_round[1]:.2f} ms, gamma {gamma}; {equal}"
    return Row(f"round {pair.name}", estimate, detail, "<= 0.6", estimate.value <= 0.6 and explained)


def speculative(draft: LoadedModel, gamma: int) -> DraftAndVerify:
    return DraftAndVerify(ModelDrafter(draft.session()), SpeculativeSampling(), lambda: Constant(gamma))


def bench_speedup(pair: Pair, gamma: int, num_tokens: int, repeats: int) -> tuple[Row, Row]:
    """The pair's speed-up over plain decoding, and the cost model's prediction of that of its rounds, from the same runs.

    Both arms stop at EOS, so seconds are per emitted token.
    """
    session, methods = pair.target.session(), (Autoregressive(), speculative(pair.draft, gamma))
    stop = Stop(max_new_tokens=num_tokens, token_ids=frozenset(pair.target.eos_token_ids))

    def call(method: Method) -> Callable[[int], Generation]:
        return lambda i: ours(method, session, pair.prompts[i], stop, time.perf_counter)

    timed = interleaved([call(method) for method in methods], len(pair.prompts), repeats)
    counts = np.stack([timed.totals(arm, lambda generation: len(generation.tokens)) for arm in (0, 1)])
    estimate = ratio_of_rates(timed.seconds, counts, "times plain decoding")
    plain, drafted = (_all_steps(by_prompt) for by_prompt in timed.results)
    equal = sum(mine.tokens == other.tokens for mine, other in zip(*_first_results(timed), strict=True))
    costs = costs_of(plain, drafted, gamma)
    detail = (
        f"{costs.tokens_per_step:.2f} tokens a step at gamma {gamma}, c = {costs.draft_s / costs.ar_s:.3f}, "
        f"{counts[0].sum() / len(pair.prompts) / repeats:.1f} tokens a prompt; {equal} of {len(pair.prompts)} outputs equal"
    )
    speed = Row(f"speed-up {pair.name}", estimate, detail, ">= 1.5", estimate.value >= 1.5)
    rounds = np.stack([timed.totals(arm, _rounds_s) for arm in (0, 1)])
    outside = (timed.seconds - rounds).sum(1) / len(pair.prompts) / repeats
    return speed, _cost_row(pair.name, costs, ratio_of_rates(rounds, counts, ""), estimate.value, outside)


def _all_steps(by_prompt: list[list[Generation]]) -> list[Step]:
    return [step for generations in by_prompt for generation in generations for step in generation.steps]


def _rounds_s(generation: Generation) -> float:
    return sum(step.round_s for step in generation.steps)


@dataclass(frozen=True)
class Costs:
    """Mean seconds of a plain token, a draft run, a verification and the rest of a round; tokens that a round emits."""

    gamma: int
    tokens_per_step: float
    ar_s: float
    draft_s: float
    verify_s: float
    round_s: float

    @property
    def speedup(self) -> float:
        """tokens x T_ar / (gamma T_draft + T_verify + T_round)."""
        return float(predicted_speedup(**asdict(self)))


def costs_of(plain: Sequence[Step], drafted: Sequence[Step], gamma: int) -> Costs:
    """Means over rounds that drafted ``gamma`` tokens, as the formula has them; tokens a step over all rounds."""
    full = [step for step in drafted if len(step.drafted) == gamma]
    rest = [step.round_s - step.draft_s - step.verify_s for step in full]
    return Costs(
        gamma=gamma,
        tokens_per_step=float(np.mean([step.emitted for step in drafted])),
        ar_s=float(np.mean([step.round_s for step in plain])),
        draft_s=float(np.mean([step.draft_s for step in full])) / gamma,
        verify_s=float(np.mean([step.verify_s for step in full])),
        round_s=float(np.mean(rest)),
    )


def _cost_row(name: str, costs: Costs, measured: Estimate, whole_call: float, outside_s: np.ndarray) -> Row:
    """Predicted over measured speed-up of the rounds; what is outside of them (prefill, [2] seconds a prompt) is told."""
    off = costs.speedup / measured.value
    parts = ", ".join(f"{part} {getattr(costs, part + '_s') * 1e3:.2f} ms" for part in ("ar", "draft", "verify", "round"))
    detail = (
        f"predicts {costs.speedup:.2f}, rounds measured {measured.value:.2f}, whole call {whole_call:.2f}: {parts}; "
        f"prefill {outside_s[0] * 1e3:.2f} ms a prompt plain, {outside_s[1] * 1e3:.2f} ms with the draft's"
    )
    # Predicted over measured: the interval of the measured one, turned over.
    low, high = (costs.speedup / bound if bound else None for bound in (measured.high, measured.low))
    estimate = Estimate(off, low, high, measured.n, "predicted / measured")
    return Row(f"cost model {name}", estimate, detail, "0.9 to 1.1", 0.9 <= off <= 1.1)


def bench_memory(pair: Pair, num_examples: int = 1000, num_tokens: int = 16) -> Row | None:
    """Growth of resident memory from a fifth of the examples to the last, plain and speculative decoding in turns.

    None where resident memory cannot be read.
    """
    session, stop = pair.target.session(), Stop(max_new_tokens=num_tokens)
    methods: tuple[Method, Method] = (Autoregressive(), speculative(pair.draft, 4))
    first, before = max(1, num_examples // 5), None
    for number in range(1, num_examples + 1):
        ours(methods[number % 2], session, pair.prompts[number // 2 % len(pair.prompts)], stop)
        if number == first:
            before = resident_bytes()
    after = resident_bytes()
    if before is None or after is None:
        return None
    growth = (after - before) / before
    detail = f"{before / 2**20:.1f} MiB after {first} examples, {after / 2**20:.1f} MiB after {num_examples}"
    return Row(f"memory {pair.name}", Estimate(growth, None, None, num_examples, "growth"), detail, "<= 0.01", growth <= 0.01)


def bench_family(family: Family, sizes: Sizes, profile: str, source: str, num_examples: int) -> Iterator[Row]:
    """Every check on one family of the zoo, one after the other; trains what is missing of it."""
    scale = scale_of(profile)
    zoo.ensure(family.models, scale, source)
    models = {name: load_model(pin_model(ModelSpec(name=f"zoo:{name}"), profile, source)) for name in family.models}
    target, draft = models[family.models[0]], models[family.models[-1]]
    prompts = _prompts(family, target, sizes.prompts, source)
    for name, model in models.items():
        yield bench_autoregressive(model, prompts, sizes.tokens, sizes.repeats, deep=name == family.models[0])
    pair = Pair(f"{target.name} + {draft.name}", target, draft, prompts)
    yield bench_round(pair, sizes.gamma, sizes.tokens, sizes.repeats)
    yield from bench_speedup(pair, sizes.gamma, sizes.tokens, sizes.repeats)
    if (row := bench_memory(pair, num_examples)) is not None:
        yield row


def _prompts(family: Family, target: LoadedModel, count: int, source: str) -> Prompts:
    task = get_task(family.task)
    style: PromptStyle = "t5" if target.is_encoder_decoder else "instruction"
    return [target.encode(task.prompt(example, style))[:MAX_PROMPT] for example in task.examples(source, "test", count, 0)]
