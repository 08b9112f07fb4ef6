"""Time our loops against the loops of transformers on the zoo: a plan of comparisons, and rows with goals from their records.

The runner records the comparisons like any others: arms take turns example by example, outputs that should be equal are
compared, a killed run goes on, and what is recorded is not run again. The arms of transformers share the weights of ours.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.records import Record
from harness.measures.of_run import num_tokens, tokens_per_step
from harness.measures.pairing import incomparable, num_near_ties, paired, rounds_s, succeeded, wall_s
from harness.measures.statistics import Estimate, Missing, as_told, of_sums
from harness.models.fit import Models
from harness.papers.leviathan.speed import account
from harness.run.build import build_method
from harness.run.decode import generate
from harness.run.instruments import resident_bytes
from harness.run.peers import with_peers
from harness.run.prompts import examples_of, make_prompt
from harness.run.runner import Runner, pin
from tasks import get_task

MAX_PROMPT = 256
MEMORY_TOKENS = 16
Records = Sequence[Record]
Number = Estimate | Missing | None


@dataclass(frozen=True)
class _Family:
    """Models of the zoo that share a tokenizer, the target first and the smallest draft last, and the task of their prompts."""

    models: tuple[str, ...]
    task: str


FAMILIES = {
    "llama": _Family(("llama-target", "llama-draft-large", "llama-draft-small"), "text"),
    "t5": _Family(("t5-xxl", "t5-large", "t5-base", "t5-small"), "wmt-en-de"),
    "gpt": _Family(("gpt-target", "gpt-draft"), "text"),
}


@dataclass(frozen=True)
class Sizes:
    """The size of a benchmark: drafted tokens a round, prompts, repeats of each, generated tokens a prompt."""

    gamma: int
    prompts: int
    repeats: int
    tokens: int


@dataclass(frozen=True)
class Row:
    """One line of the benchmark: a number with its interval, its parts in words, its goal, and the signatures of its arms."""

    name: str
    estimate: Estimate | None
    detail: str
    goal: str
    met: bool
    signatures: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        return as_told(self)

    def as_text(self) -> str:
        if self.estimate is None:
            return f"{self.name:44s} no number (goal {self.goal}: MISSED); {self.detail}"
        value = f"{self.estimate.as_text('.3f')} {self.estimate.unit}"
        return f"{self.name:44s} {value} (goal {self.goal}: {'met' if self.met else 'MISSED'}); {self.detail}"


def plan(family: _Family, sizes: Sizes, profile: str, source: str, num_threads: int | None) -> dict[str, Comparison]:
    """The comparisons of a family: "lengths" and "eos" of its pair (past EOS; up to it), and one for each other model."""
    pair = _pair(family, sizes, profile, source, num_threads)
    comparisons = {
        "lengths": _with(pair, "generate", "assistant"),
        "eos": _with(Comparison(tuple(arm.replace(ignore_eos=False) for arm in pair.arms)), "assistant"),
    }
    for name in family.models[1:]:
        plain = pair.arms[0].replace(target=ModelSpec(name=f"zoo:{name}"))
        comparisons[name] = _with(Comparison((plain,)), "generate")
    return comparisons


def _with(comparison: Comparison, *peers: str) -> Comparison:
    own, others = with_peers(comparison, peers)
    return Comparison(tuple(pin(arm) for arm in (*own.arms, *others.values())))


def _pair(family: _Family, sizes: Sizes, profile: str, source: str, num_threads: int | None) -> Comparison:
    plain = Experiment(
        task=family.task,
        source=source,
        profile=profile,
        target=ModelSpec(name=f"zoo:{family.models[0]}"),
        method=MethodSpec(name="autoregressive"),
        limit=sizes.prompts,
        repeats=sizes.repeats,
        max_new_tokens=sizes.tokens,
        max_input_tokens=MAX_PROMPT,
        ignore_eos=True,
        prompt_style="t5" if family.task.startswith("wmt") else "instruction",
        num_threads=num_threads,
    )
    draft = DrafterSpec(kind="model", model=ModelSpec(name=f"zoo:{family.models[-1]}"))
    return Comparison((plain, plain.replace(method=MethodSpec.of("speculative", drafter=draft, gamma=sizes.gamma))))


def rows(comparisons: dict[str, Comparison], gamma: int, runner: Runner, num_examples: int) -> Iterator[Row]:
    """Run what is missing of a family's plan, and yield its rows."""
    for name, comparison in comparisons.items():
        runner.run(comparison, f"bench {name}")
        records = [runner.records(arm) for arm in comparison.arms]
        if name == "lengths":
            plain, ours, generate, assistant = records
            yield autoregressive_row(comparison, plain, generate, deep=True)
            yield round_row(comparison, plain, ours, assistant, gamma)
        elif name == "eos":
            plain, ours, *_ = records
            yield speedup_row(comparison, *records)
            yield cost_row(comparison, plain, ours, gamma)
            if (row := memory_row(comparison, runner, num_examples)) is not None:
                yield row
        else:
            plain, generate = records
            yield autoregressive_row(comparison, plain, generate, deep=False)


def autoregressive_row(comparison: Comparison, ours: Records, generate: Records, deep: bool) -> Row:
    """Our plain loop against ``generate``: seconds a token over seconds a token, both past any EOS."""
    number = ratio(ours, generate, num_tokens, "ours / generate")
    detail = f"{_ms(ours, num_tokens)} ms a token, generate {_ms(generate, num_tokens)} ms; {equality(generate)}"
    bound = 1.0 if deep else 1.03
    goal = f"{'<' if deep else '<='} {bound}"
    name = f"autoregressive {comparison.arms[0].target.name}"
    return _row(comparison, name, number, detail, goal, lambda value: value < bound or (value == bound and not deep))


def round_row(comparison: Comparison, plain: Records, ours: Records, assistant: Records, gamma: int) -> Row:
    """Our round of draft and verify against assisted generation: seconds a round over seconds a round."""
    number = incomparable(plain, ours) or ratio(ours, assistant, num_rounds, "ours / assisted generation")
    detail = (
        f"{_ms(ours, num_rounds)} ms a round, assisted {_ms(assistant, num_rounds)} ms, gamma {gamma}; "
        f"{equality(ours)}, of assisted {equality(assistant)}"
    )
    return _row(comparison, f"round {_models(comparison)}", number, detail, "<= 0.6", lambda value: value <= 0.6)


def speedup_row(comparison: Comparison, plain: Records, ours: Records, assistant: Records) -> Row:
    """The speed-up over plain decoding. All arms stop at EOS, so seconds are per emitted token."""
    unit = "times plain decoding"
    other = ratio(plain, assistant, num_tokens, unit)
    shown = f"{other.value:.2f}" if isinstance(other, Estimate) else "refused"
    rounds = tokens_per_step(ours)
    detail = (
        f"{rounds.value if rounds else float('nan'):.2f} tokens a step at gamma {comparison.arms[1].method.gamma}, "
        f"{num_tokens(plain) / max(1, len(plain)):.1f} tokens a prompt, assisted generation {shown}; {equality(ours)}"
    )
    number = ratio(plain, ours, num_tokens, unit)
    return _row(comparison, f"speed-up {_models(comparison)}", number, detail, ">= 1.5", lambda value: value >= 1.5)


def cost_row(comparison: Comparison, plain: Records, ours: Records, gamma: int) -> Row:
    """The speed-up of the rounds that their parts predict (Leviathan, Theorem 3.8 with all costs) over the measured one."""
    name, goal, unit = f"cost model {_models(comparison)}", "0.9 to 1.1", "predicted / measured"
    costs, measured = account(plain, ours, "", gamma), ratio(plain, ours, num_tokens, unit, rounds_s)
    if not isinstance(measured, Estimate) or costs is None or isinstance(costs, Missing):
        return _row(comparison, name, None if isinstance(measured, Estimate) else measured, "no costs", goal, bool)
    values = {part: estimate.value if estimate else float("nan") for part, estimate in costs.items()}
    predicted = values["predicted_costs"]
    low, high = (predicted / bound if bound else None for bound in (measured.high, measured.low))
    parts = ", ".join(f"{part} {values[f'{part}_s'] * 1e3:.2f} ms" for part in ("ar", "draft", "verify", "fixed"))
    detail = (
        f"predicts {predicted:.2f}, rounds measured {measured.value:.2f}, whole call {values['speedup']:.2f}: {parts}; "
        f"{values['outside_rounds']:.1%} of the time outside rounds"
    )
    off = Estimate(predicted / measured.value, low, high, measured.n, unit)
    return _row(comparison, name, off, detail, goal, lambda value: 0.9 <= value <= 1.1)


def memory_row(comparison: Comparison, runner: Runner, num_examples: int) -> Row | None:
    """Growth of resident memory from a fifth of the examples to the last, plain and speculative decoding in turns.

    A leak, not a speed: nothing is recorded. None where resident memory cannot be read.
    """
    found = runner.with_models(comparison.arms[0], partial(_resident, comparison.arms[:2], num_examples))
    if found is None:
        return None
    (before, after), first = found, max(1, num_examples // 5)
    growth = Estimate((after - before) / before, None, None, num_examples, "growth")
    detail = f"{before / 2**20:.1f} MiB after {first} examples, {after / 2**20:.1f} MiB after {num_examples}"
    return _row(comparison, f"memory {_models(comparison)}", growth, detail, "<= 0.01", lambda value: value <= 0.01)


def _resident(arms: Sequence[Experiment], num_examples: int, models: Models) -> tuple[int, int] | None:
    """Resident bytes after a fifth of the examples and after all of them."""
    arms = [arm.replace(max_new_tokens=MEMORY_TOKENS) for arm in arms]
    target, task = models.get(arms[0].target), get_task(arms[0].task)
    prompts = [make_prompt(task, example, arms[0], target) for example in examples_of(arms[0])]
    methods, session, before = [build_method(arm.method, target, models) for arm in arms], target.session(), None
    for number in range(1, num_examples + 1):
        which, prompt = number % len(arms), prompts[number // len(arms) % len(prompts)]
        generate(arms[which], methods[which], [prompt], target, session, repeat=0)
        if number == max(1, num_examples // 5):
            before = resident_bytes()
    after = resident_bytes()
    return None if before is None or after is None else (before, after)


def num_rounds(records: Records) -> int:
    return sum(len(record.steps.emitted) for record in succeeded(records) if record.steps is not None)


def ratio(
    first: Records, second: Records, count: Callable[[Records], int], unit: str, seconds: Callable[[Record], float] = wall_s
) -> Number:
    """Seconds per count of the first arm over that of the second: totals over examples, with a paired bootstrap."""
    if refusal := incomparable(first, second):
        return refusal
    sums = paired(first, second, lambda record: (seconds(record), count([record])))
    if sums is None:
        return None
    (first_s, first_n), (second_s, second_n) = sums.first, sums.second
    columns = {"first_s": first_s, "first_n": first_n, "second_s": second_s, "second_n": second_n}
    return of_sums(columns, lambda t, n: (t["first_s"] / t["first_n"]) / (t["second_s"] / t["second_n"]), unit, sums.units)


def equality(records: Records) -> str:
    """Say how many outputs are plain decoding's; near-ties are told as harness.run.divergence tells them."""
    differing, ties = sum(record.divergence is not None for record in records), num_near_ties(records)
    text = f"{len(records) - differing} of {len(records)} outputs equal"
    return (
        text + (f", {ties} part at a near-tie" if ties else "") + (f", {differing - ties} DIFFER" if differing > ties else "")
    )


def _row(comparison: Comparison, name: str, number: Number, detail: str, goal: str, is_met: Callable[[float], bool]) -> Row:
    signatures = tuple(arm.signature for arm in comparison.arms)
    if isinstance(number, Estimate):
        return Row(name, number, detail, goal, is_met(number.value), signatures)
    reason = number.why if isinstance(number, Missing) else "no example was completed by both arms"
    return Row(name, None, f"{reason}; {detail}", goal, False, signatures)


def _models(comparison: Comparison) -> str:
    drafter = comparison.arms[1].method.drafter
    assert drafter is not None
    assert drafter.model is not None
    return f"{comparison.arms[0].target.name} + {drafter.model.name}"


def _ms(records: Records, count: Callable[[Records], int]) -> str:
    good = succeeded(records)
    return f"{1e3 * sum(map(wall_s, good)) / max(1, count(good)):.2f}"
