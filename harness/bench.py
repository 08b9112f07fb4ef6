"""Times our loops against transformers' own on the same weights, in one process, interleaved prompt by prompt.

The reference is a second copy of each model, loaded untouched: our sessions lay weights out anew, which would also help it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from harness import zoo
from harness.experiment import ModelSpec
from harness.memory import resident_bytes
from harness.models import LoadedModel, load_model, pin_model, scale_of
from harness.statistics import Estimate, ratio_of_totals
from methods.autoregressive import Autoregressive
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.speculative.theory import predicted_speedup
from methods.types import Generation, Inputs, Method, Session, Stop
from tasks import get_task

GREEDY = Sampling()
Prompts = Sequence[tuple[int, ...]]


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
    "llama": Family(("llama-target", "llama-draft-large", "llama-draft-small"), "wmt-en-fr"),
    "t5": Family(("t5-xxl", "t5-large", "t5-base", "t5-small"), "wmt-en-de"),
    "gpt": Family(("gpt-target", "gpt-draft"), "text"),
}
MAX_PROMPT = 256


@dataclass(frozen=True)
class Pair:
    """A target and a draft with the prompts that both are timed on."""

    name: str
    target: LoadedModel
    draft: LoadedModel
    prompts: Sequence[tuple[int, ...]]


def reference_model(model: LoadedModel) -> torch.nn.Module:
    """transformers' own model from the same folder, its weights as it lays them out."""
    kind = AutoModelForSeq2SeqLM if model.is_encoder_decoder else AutoModelForCausalLM
    reference = kind.from_pretrained(model.path, local_files_only=True).eval()
    if model.is_encoder_decoder and reference.config.model_type == "t5":
        # generate sizes the decoder's cache by num_layers, the encoder's depth, and fails where the decoder is deeper.
        reference.config.num_layers = max(reference.config.num_layers, reference.config.num_decoder_layers)
    return reference


def ours(method: Method, session: Session, prompt: tuple[int, ...], num_tokens: int, clocked: bool = False) -> list[Generation]:
    uniforms = Uniforms([0], num_tokens + 64)
    stop = Stop(max_new_tokens=num_tokens)
    return method.generate(session, Inputs((prompt,)), GREEDY, uniforms, stop, time.perf_counter if clocked else None)


def theirs(reference: torch.nn.Module, prompt: tuple[int, ...], num_tokens: int, **options: object) -> torch.Tensor:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        return reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            num_beams=1,
            **options,
        )


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls: Sequence[Callable[[int], object]], num_prompts: int, repeats: int) -> np.ndarray:
    """[calls, prompts] seconds summed over repeats; the order of the calls rotates; one untimed round first."""
    for call in calls:
        call(0)
    totals = np.zeros((len(calls), num_prompts))
    for turn in range(repeats * num_prompts):
        for offset in range(len(calls)):
            index = (turn + offset) % len(calls)
            prompt = turn % num_prompts
            totals[index, prompt] += seconds(lambda: calls[index](prompt))  # noqa: B023 (called at once)
    return totals


def bench_autoregressive(
    model: LoadedModel, prompts: Sequence[tuple[int, ...]], num_tokens: int, repeats: int, deep: bool
) -> Row:
    """Our plain loop against ``generate``: seconds over seconds for the same number of tokens."""
    reference, session, method = reference_model(model), model.session(), Autoregressive()
    times = interleaved(
        [
            lambda i: ours(method, session, prompts[i], num_tokens),
            lambda i: theirs(reference, prompts[i], num_tokens),
        ],
        len(prompts),
        repeats,
    )
    estimate = ratio_of_totals(times[0], times[1], "ours / generate")
    assert estimate is not None
    per_token = times.sum(1) / (len(prompts) * repeats * num_tokens) * 1e3
    detail = f"{per_token[0]:.2f} ms a token, generate {per_token[1]:.2f} ms"
    limit = 1.0 if deep else 1.03
    goal = f"{'<' if deep else '<='} {limit}"
    return Row(f"autoregressive {model.name}", estimate, detail, goal, estimate.value <= limit)


def bench_round(pair: Pair, gamma: int, num_tokens: int, repeats: int) -> Row:
    """Our round of draft and verify against transformers' assisted generation: seconds a target run over the same."""
    target, draft = reference_model(pair.target), reference_model(pair.draft)
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    runs = {"ours": 0, "theirs": 0}

    def count(*_: object) -> None:
        runs["theirs"] += 1

    target.register_forward_hook(count)
    session, method = pair.target.session(), speculative(pair.draft, gamma)

    def our_run(i: int) -> None:
        runs["ours"] += len(ours(method, session, pair.prompts[i], num_tokens)[0].steps)

    calls = [our_run, lambda i: theirs(target, pair.prompts[i], num_tokens, assistant_model=draft)]
    for call in calls:
        call(0)
    runs.update(ours=0, theirs=0)
    times = np.zeros((2, len(pair.prompts)))
    counted = np.zeros((2, len(pair.prompts)))
    for turn in range(repeats * len(pair.prompts)):
        prompt = turn % len(pair.prompts)
        for index in (turn % 2, 1 - turn % 2):
            before = dict(runs)
            times[index, prompt] += seconds(lambda: calls[index](prompt))  # noqa: B023 (called at once)
            counted[index, prompt] += sum(runs.values()) - sum(before.values())
    per_round = times.sum(1) / counted.sum(1)
    # Rounds are the same in both but for near-ties; each side is divided by its own count.
    estimate = ratio_of_totals(times[0] / counted[0], times[1] / counted[1], "ours / assisted generation")
    assert estimate is not None
    detail = f"{per_round[0] * 1e3:.2f} ms a round, assisted {per_round[1] * 1e3:.2f} ms, gamma {gamma}"
    return Row(f"round {pair.name}", estimate, detail, "<= 0.6", estimate.value <= 0.6)


def speculative(draft: LoadedModel, gamma: int) -> DraftAndVerify:
    return DraftAndVerify(ModelDrafter(draft.session()), SpeculativeSampling(), lambda: Constant(gamma))


def bench_speedup(pair: Pair, gamma: int, num_tokens: int, repeats: int) -> tuple[Row, Row]:
    """The pair's speed-up over plain decoding, and the cost model's prediction of it from the parts as measured."""
    session, plain, method = pair.target.session(), Autoregressive(), speculative(pair.draft, gamma)
    kept: list[list[Generation]] = [[], []]

    def run(index: int, prompt: int) -> None:
        kept[index] += ours((plain, method)[index], session, pair.prompts[prompt], num_tokens, clocked=True)

    times = interleaved([lambda i: run(0, i), lambda i: run(1, i)], len(pair.prompts), repeats)
    estimate = ratio_of_totals(times[0], times[1], "times plain decoding")
    assert estimate is not None
    steps = [step for generation in kept[1] for step in generation.steps]
    tokens_per_step = float(np.mean([step.emitted for step in steps]))
    parts = _costs(kept, steps)
    predicted = predicted_speedup(tokens_per_step=tokens_per_step, gamma=gamma, **parts)
    detail = f"{tokens_per_step:.2f} tokens a step at gamma {gamma}, c = {parts['draft_s'] / parts['ar_s']:.3f}"
    speed = Row(f"speed-up {pair.name}", estimate, detail, ">= 1.5", estimate.value >= 1.5)
    off = predicted / estimate.value
    costs = ", ".join(f"{name.removesuffix('_s')} {value * 1e3:.2f} ms" for name, value in parts.items())
    agreement = Estimate(float(off), None, None, estimate.n, "predicted / measured")
    return speed, Row(
        f"cost model {pair.name}", agreement, f"predicts {predicted:.2f}: {costs}", "0.9 to 1.1", 0.9 <= off <= 1.1
    )


def _costs(kept: list[list[Generation]], steps: list) -> dict[str, float]:
    """Mean seconds of a plain token, a draft run, a verification and the rest of a round, over full rounds."""
    plain = [step.round_s for generation in kept[0] for step in generation.steps]
    longest = max(len(step.drafted) for step in steps)
    full = [step for step in steps if len(step.drafted) == longest]
    draft, verify = np.mean([s.draft_s for s in full]), np.mean([s.verify_s for s in full])
    rest = np.mean([s.round_s - s.draft_s - s.verify_s for s in full])
    return {
        "ar_s": float(np.mean(plain)),
        "draft_s": float(draft / longest),
        "verify_s": float(verify),
        "round_s": float(rest),
    }


def bench_memory(model: LoadedModel, prompts: Sequence[tuple[int, ...]], num_examples: int = 1000) -> Row | None:
    """Growth of resident memory between the 100th and the last example; None where it cannot be read."""
    session, method = model.session(), Autoregressive()
    before = None
    for index in range(num_examples):
        ours(method, session, prompts[index % len(prompts)], 8)
        if index == 99:
            before = resident_bytes()
    after = resident_bytes()
    if before is None or after is None:
        return None
    growth = (after - before) / before
    detail = f"{before / 2**20:.1f} MiB after 100 examples, {after / 2**20:.1f} MiB after {num_examples}"
    return Row(f"memory {model.name}", Estimate(growth, None, None, num_examples, "growth"), detail, "<= 0.01", growth <= 0.01)


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
    if (row := bench_memory(target, prompts, num_examples)) is not None:
        yield row


def _prompts(family: Family, target: LoadedModel, count: int, source: str) -> Prompts:
    task = get_task(family.task)
    style = "t5" if target.is_encoder_decoder else "instruction"
    return [target.encode(task.prompt(example, style))[:MAX_PROMPT] for example in task.examples(source, "test", count, 0)]
