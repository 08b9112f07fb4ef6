"""Advice: predictions against theory and the loop itself, crossovers, commands, and the whole command on small models."""

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import GenerationConfig

from harness.advise import measure
from harness.advise.commands import commands
from harness.advise.predict import Cell, Costs, Pilot, Pipeline, acceptance_for, best_three, replayed, survival
from harness.advise.recommendation import Answer, Checked, changes, choice_of, crossing, over_batches, verdict
from harness.cli.advise import _commands, achieved, plain_experiment
from harness.cli.main import main, parser
from harness.core.errors import UsageError
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.core.records import EarlyRanks, Record
from harness.measures import of_run
from harness.measures.pairing import overlap_of
from harness.measures.statistics import Estimate, Missing, Refused, tail_among
from harness.report.items import advice_items
from harness.run.runner import Runner, pin
from kernels.inputs import SamplingSpec
from methods.errors import WorkerError
from methods.models.checkpoint import KEPT_TOKENS
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.ppd.theory import half_depth_latency_per_token
from methods.speculative.schedules import Sweep, swept
from methods.speculative.theory import walltime_factor
from methods.steps import Steps

CHECKPOINTS = Path(__file__).resolve().parents[2] / "results" / "baselines" / "checkpoints"
COPY, DRAFT = DrafterSpec(kind="copy"), DrafterSpec(kind="model", model=ModelSpec(name="zoo:t5-small"))


def swept_record(experiment: Experiment, example: str, num_tokens: int, cost_ratio: float, ar_s: float = 0.01) -> Record:
    """A sweep in which no draft stood: a draft takes ``cost_ratio`` of a token's time, verifying as long as a token."""
    counts = [swept(12)[turn % len(swept(12))] for turn in range(num_tokens)]
    steps = Steps(
        drafted=[[0] * count for count in counts],
        num_accepted=[0] * num_tokens,
        emitted=[1] * num_tokens,
        target_probs=[[]] * num_tokens,
        draft_probs=[[]] * num_tokens,
        draft_s=[count * cost_ratio * ar_s for count in counts],
        verify_s=[ar_s] * num_tokens,
        round_s=[ar_s * (1 + count * cost_ratio) for count in counts],
    )
    return Record(
        signature=experiment.signature, example=example, repeat=0, status="ok", tokens=[7] * num_tokens,
        stop_reason="length", wall_s=sum(steps.round_s), steps=steps,
    )  # fmt: skip


def synthetic_pilot(synthetic: SimpleNamespace, alpha: float, cost_ratio: float, num_tokens: int = 1500) -> Pilot:
    plain, names = synthetic.plain_experiment(), ["a", "b", "c", "d"]
    own = [synthetic.plain(plain, name, num_tokens, overlap={"t5-small": [alpha] * num_tokens}) for name in names]
    return Pilot(own, [swept_record(plain, name, num_tokens, cost_ratio) for name in names], DRAFT, 1)


@pytest.mark.parametrize(("alpha", "cost_ratio", "gamma"), [(0.8, 0.1, 4), (0.5, 0.02, 2), (0.9, 0.3, 8), (0.6, 1.0, 1)])
def test_exact_costs_and_one_alpha_give_theorem_3_8(
    synthetic: SimpleNamespace, alpha: float, cost_ratio: float, gamma: int
) -> None:
    """Rounds of 6000 tokens, drawn eight times: within three standard errors. Without the bonus token it is 15 % off."""
    cell = synthetic_pilot(synthetic, alpha, cost_ratio).predict(gamma, 1500)
    assert cell is not None
    assert cell.speed.value == pytest.approx(float(walltime_factor(alpha, gamma, cost_ratio)), rel=0.02)
    assert cell.alpha == pytest.approx(alpha, abs=0.02)


def test_texts_of_the_look_count_and_its_pace_does_not(synthetic: SimpleNamespace) -> None:
    """By hand: of the pilot's texts no draft stands, of as many of the look all do: 8 T tokens in 4 T + 4 T / 4 rounds. The
    look ran at half the speed. Faults: 1.0 without its texts, 2.0 where its seconds count, NaN where a resample has no cost."""
    plain, names, tokens = synthetic.plain_experiment(), ["a", "b", "c", "d"], 240
    own = [synthetic.plain(plain, name, tokens, overlap={"t5-small": [0.0] * tokens}) for name in names]
    looked = [synthetic.plain(plain, name, tokens, 0.02, overlap={"t5-small": [1.0] * tokens}) for name in "efgh"]
    unknown = [synthetic.plain(plain, "i", tokens, overlap={"other": [1.0] * tokens})]
    drafted = [swept_record(plain, name, tokens, 0.0) for name in names]
    cell = Pilot(own, drafted, DRAFT, 1, [*looked, *unknown]).predict(3, tokens)
    assert cell is not None
    assert cell.speed.value == pytest.approx(8 / (4 + 4 / 4), rel=1e-9)
    assert cell.speed.n == 8
    low, high = cell.speed.low, cell.speed.high
    assert low is not None
    assert high is not None
    assert 1 <= low < 1.6 < high <= 4


def test_a_pace_that_both_arms_share_cancels(synthetic: SimpleNamespace) -> None:
    """No draft stands and each costs a tenth of a token: 1 / 1.3 at gamma 3 at any pace, so that the interval has no width.
    Fault: with the look at the pilot's mean pace and costs of the texts that are drawn it is [0.72, 0.83]."""
    plain, tokens = synthetic.plain_experiment(), 240
    paces = {"a": 0.0100, "b": 0.0115, "c": 0.0100, "d": 0.0118}
    none = {"t5-small": [0.0] * tokens}
    own = [synthetic.plain(plain, name, tokens, pace, overlap=none) for name, pace in paces.items()]
    drafted = [swept_record(plain, name, tokens, 0.1, pace) for name, pace in paces.items()]
    looked = [synthetic.plain(plain, str(n), tokens, 0.05, overlap=none) for n in range(13)]
    cell = Pilot(own, drafted, DRAFT, 1, looked).predict(3, tokens)
    assert cell is not None
    low, high = cell.speed.low or cell.speed.value, cell.speed.high or cell.speed.value  # None: there is no spread
    assert (cell.speed.value, low, high) == pytest.approx((1 / 1.3,) * 3, rel=0.01)


def test_looked_batches_of_another_size_do_not_count(synthetic: SimpleNamespace) -> None:
    """Two rows a batch, the look's last batch has one: its rounds cost something else."""
    plain = synthetic.plain_experiment(batch_size=2)
    full = {"t5-small": [0.5] * 48}
    own = [replace(synthetic.plain(plain, name, 48, overlap=full), num_rows=2) for name in "ab"]
    drafted = [replace(swept_record(plain, name, 48, 0.1), num_rows=2) for name in "ab"]
    looked = [replace(synthetic.plain(plain, name, 48, overlap=full), num_rows=2 if name in "cd" else 1) for name in "cde"]
    texts = Pilot(own, drafted, DRAFT, 2, looked).texts
    assert [[row.example for row in rows] for rows in texts] == [["a", "b"], ["c", "d"]]


def test_no_gamma_is_predicted_whose_rounds_were_hardly_seen(synthetic: SimpleNamespace) -> None:
    """Of 48 rounds of ten kinds five each have up to 8 drafts, four have 10 and 12: too few, and no cost is made up."""
    plain = synthetic.plain_experiment()
    own = [synthetic.plain(plain, "a", 48, overlap={"t5-small": [0.5] * 48})]
    pilot = Pilot(own, [swept_record(plain, "a", 48, 0.1)], DRAFT, 1)
    assert pilot.gammas == (1, 2, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize("num_tokens", [8, 240])
def test_a_texts_first_round_is_not_what_one_draft_costs(synthetic: SimpleNamespace, num_tokens: int) -> None:
    """It takes twice as long, and is always the sweep's of one draft; texts of 8 rounds have no other of that kind.
    Fault: a draft costs 2 ms, or 1.0125."""
    plain, names = synthetic.plain_experiment(), "abcdef"
    own = [synthetic.plain(plain, name, num_tokens, overlap={"t5-small": [0.0] * num_tokens}) for name in names]
    drafted = [swept_record(plain, name, num_tokens, 0.1) for name in names]
    for record in drafted:
        assert record.steps is not None
        for seconds in (record.steps.draft_s, record.steps.verify_s, record.steps.round_s):
            record.wall_s = (record.wall_s or 0.0) + seconds[0] * (seconds is record.steps.round_s)
            seconds[0] *= 2
    cell = Pilot(own, drafted, DRAFT, 1).predict(1, num_tokens)
    assert cell is not None
    assert cell.costs.draft_s == pytest.approx(0.001)
    assert cell.costs.verify_s == pytest.approx(0.01)


def test_without_a_whole_batch_nothing_is_predicted(synthetic: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each batch of two a row failed. Fault: an IndexError."""
    monkeypatch.setattr(measure, "incomparable", lambda *_: None)
    plain = synthetic.plain_experiment(batch_size=2)
    own = [replace(synthetic.plain(plain, name, 48, overlap={"t5-small": [0.5] * 48}), num_rows=2) for name in "abcd"]
    drafted = [replace(swept_record(plain, name, 48, 0.1), num_rows=2) for name in "abcd"]
    drafted[1::2] = [replace(one, status="error", tokens=None, steps=None, error="out of memory") for one in drafted[1::2]]
    arms = measure.Arms((plain, synthetic.drafted_experiment(plain)), (own, drafted))
    [found] = measure.pilots(arms).values()
    assert isinstance(found, Missing)
    assert found.why.startswith("batch 2: none was decoded whole by both arms")


def test_the_prompt_counts_in_both_arms(synthetic: SimpleNamespace) -> None:
    """With prompts as dear as all rounds together the gain of whole generations is far smaller than that of the rounds."""
    pilot = synthetic_pilot(synthetic, 1.0, 0.0)
    pilot.known["plain_s"] = 2 * pilot.known["plain_s"]
    pilot.known["begin_s"] = pilot.known["plain_s"] / 2
    cell = pilot.predict(3, 1500)
    assert cell is not None
    assert cell.speed.value == pytest.approx(2 / (1 + 1 / 4), rel=0.01)


def test_crossovers_solve_their_equation() -> None:
    """By hand: gamma 1, a draft of 0.2, verifying as a token: (1 + alpha) / 1.2, which is 1 at alpha 0.2."""
    costs = Costs(gamma=1, rows=1, ar_s=1.0, begin_s=0.0, draft_s=0.2, verify_s=1.0, rest_s=0.0)
    assert acceptance_for(costs, 1.0) == pytest.approx(0.2, abs=1e-9)
    dear = replace(costs, gamma=5, begin_s=0.1, draft_s=0.05, verify_s=1.4, rest_s=0.1)
    for speed in (0.8, 1.0, 1.7):
        alpha = acceptance_for(dear, speed)
        assert alpha is not None
        assert dear.speed(alpha) == pytest.approx(speed, rel=1e-9)
    assert acceptance_for(dear, 100.0) is None
    assert acceptance_for(dear, 0.01) is None


def test_survival_is_the_product_limit() -> None:
    """By hand: place 1 stands in 3 of 4 rounds, place 2 in 1 of the 2 that decided on it: a round of one draft is censored."""
    steps = Steps(drafted=[[1], [1, 2], [1, 2], [1, 2]], num_accepted=[1, 0, 1, 2], emitted=[2, 1, 2, 3])
    steps.target_probs = steps.draft_probs = [[]] * 4
    record = Record(
        signature="s", example="a", repeat=0, status="ok", tokens=[0] * 8, stop_reason="length", wall_s=1.0, steps=steps
    )
    assert [one.value for one in survival([record])] == pytest.approx([3 / 4, 3 / 4 * 1 / 2])


def test_a_sweep_goes_through_its_numbers() -> None:
    schedule, found = Sweep(10), []
    for _ in range(11):
        found.append(schedule.next())
        schedule.observe(1, 0)
    assert found == [1, 2, 3, 4, 5, 6, 7, 8, 10, 1, 2]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runner, Experiment]:
    plain = Experiment(
        task="text",
        target=ModelSpec(name=str(CHECKPOINTS / "llama-target")),
        method=MethodSpec(name="autoregressive"),
        max_new_tokens=40,
        num_threads=1,
        limit=4,
    )
    return Runner(tmp_path_factory.mktemp("records"), quiet=True, replay="none"), plain


@pytest.mark.parametrize("kind", ["model", "copy"])
def test_replayed_rounds_are_those_of_the_loop(llama: tuple[Runner, Experiment], kind: str) -> None:
    """Greedy, at three gammas: the numbers of drafts of every round are what the loop itself drafts on the same text.

    A bonus token counted twice, a budget that is one off or a draft that is looked up at the wrong place moves them.
    """
    runner, plain = llama
    model = ModelSpec(name=str(CHECKPOINTS / "llama-draft")) if kind == "model" else None
    drafter, gammas = DrafterSpec(kind=kind, model=model), (1, 3, 6)
    probed = plain.replace(probes=(OverlapProbe(drafter=drafter),))
    methods = [MethodSpec.of("speculative", drafter=drafter, gamma=gamma) for gamma in gammas]
    arms = [pin(one) for one in (probed, *(plain.replace(method=method) for method in methods))]
    runner.run(Comparison(tuple(arms)))
    own, compared = runner.records(arms[0]), 0
    for gamma, arm in zip(gammas, arms[1:], strict=True):
        for record, drafted in zip(own, runner.records(arm), strict=True):
            assert drafted.tokens == record.tokens
            assert drafted.steps is not None
            stands = [one > 0.5 for one in overlap_of(record, drafter.label) or ()]
            real = [len(one) for one in drafted.steps.drafted]
            places = np.cumsum([0, *drafted.steps.emitted])[:-1]
            empty = [False] * len(stands)
            for place, count in zip(places, real, strict=True):
                empty[place] = count == 0 and place < len(stands) - 1
            assert replayed(stands, empty, gamma, len(stands)) == real
            compared += len(real)
    assert compared > 100


def answer(cells: list[Cell], checked: list[Checked], batch_size: int = 1) -> Answer:
    return Answer(
        batch_size=batch_size, plain_s=0.01, verify_s={}, cells=cells, curves={}, checked=checked, num_examples=(4, 8)
    )


def cell_of(drafter: DrafterSpec, gamma: int, speed: float, draft_s: float = 0.1) -> Cell:
    costs = Costs(gamma=gamma, rows=1, ar_s=1.0, begin_s=0.0, draft_s=draft_s, verify_s=1.0, rest_s=0.0)
    return Cell(drafter, costs, Estimate(speed, speed - 0.1, speed + 0.1, 40, "x"), acceptance_for(costs, speed))


def test_a_draft_as_dear_as_the_target_is_not_used(synthetic: SimpleNamespace) -> None:
    """Theorem 3.11's limit: even if every draft stands, gamma + 1 tokens cost gamma + 1 runs."""
    pilot = synthetic_pilot(synthetic, 1.0, 1.0, num_tokens=200)
    cells = [cell for gamma in pilot.gammas if (cell := pilot.predict(gamma, 200)) is not None]
    assert max(cell.speed.value for cell in cells) <= 1.0 + 1e-9
    found = answer(cells, [Checked(cells[0], Estimate(0.97, 0.95, 0.99, 40, "x"), Missing("none"))])
    assert found.chosen is None
    assert verdict(found)[0].startswith("do not use it: the best is slower")


@pytest.mark.parametrize(
    ("achieved", "starts"),
    [
        (Estimate(1.2, 1.1, 1.3, 40, "x"), "use copy, gamma 3: "),
        (
            Estimate(1.2, 1.1, 1.3, 4, "x"),
            "this seems to pay: copy, gamma 3 is 1.20 [1.10, 1.30]~ times as fast",
        ),
        (Estimate(1.2, 0.9, 1.5, 40, "x"), "do not use it: the best is not clear of plain decoding"),
        (
            Estimate(1.2, None, None, 6, "x"),
            "no recommendation: copy, gamma 3 is 1.20 times as fast as plain decoding, 8 examples, too few",
        ),
        (Refused("refused: the machine was busy"), "no recommendation: refused: the machine was busy"),
    ],
)
def test_only_an_interval_above_one_is_recommended(achieved: Estimate | Missing, starts: str) -> None:
    cell = cell_of(COPY, 3, 1.3)
    assert verdict(answer([cell], [Checked(cell, achieved, achieved)]))[0].startswith(starts)


def test_of_those_alike_the_best_predicted_is_chosen() -> None:
    """gamma 7 was 0.4 % faster in the check than gamma 5, which was predicted to be 4 % faster: noise. Beyond 2 % it counts."""
    cells = [cell_of(COPY, gamma, speed) for gamma, speed in ((5, 1.20), (3, 1.19), (7, 1.155))]

    def best(*speeds: float) -> int:
        checked = [
            Checked(cell, Estimate(speed, speed - 0.1, speed + 0.1, 40, "x"), Missing("none"))
            for cell, speed in zip(cells, speeds, strict=True)
        ]
        found = answer(cells, checked).best
        assert found is not None
        return found.cell.gamma

    assert best(1.243, 1.21, 1.248) == 5
    assert best(1.20, 1.21, 1.248) == 7
    assert best(0.90, 1.21, 1.215) == 3
    unclear = Checked(cells[0], Estimate(1.05, 0.99, 1.11, 40, "x"), Missing("none"))
    clear = Checked(cells[2], Estimate(1.06, 1.02, 1.10, 40, "x"), Missing("none"))
    assert answer(cells, [unclear, clear]).chosen == clear


def test_one_that_was_as_fast_is_not_told_what_it_needs_to_win() -> None:
    best, other = cell_of(COPY, 3, 1.3), cell_of(DRAFT, 2, 1.2)
    checked = [
        Checked(cell, Estimate(speed, speed - 0.1, speed + 0.1, 40, "x"), Missing("none"))
        for cell, speed in ((best, 1.25), (other, 1.26))
    ]
    assert changes(answer([best, other], checked))[1] == (
        "t5-small, gamma 2 is alike: 1.26 [1.16, 1.36] times as fast as plain decoding when it ran"
    )


def test_what_would_have_to_change() -> None:
    best, other, never = cell_of(COPY, 3, 1.5), cell_of(DRAFT, 2, 1.2), cell_of(DrafterSpec(kind="random"), 2, 1.0, draft_s=1.0)
    found = changes(answer([best, other, never], [Checked(best, Estimate(1.5, 1.4, 1.6, 40, "x"), Missing("none"))]))
    at, win = acceptance_for(best.costs, 1.0), acceptance_for(other.costs, 1.5)
    assert f"as fast as plain decoding at an acceptance of {at:.2f}" in found[0]
    assert f"t5-small, gamma 2 would win from an acceptance of {win:.2f} on" in found[1]
    assert "random, gamma 2 would not win at any acceptance: at most 1.00" in found[2]


def timed(arm: str, seconds: np.ndarray) -> list[Record]:
    """Records of one token whose only content is how long they took."""
    return [
        Record(signature=arm, example=str(n), repeat=0, status="ok", tokens=[7], stop_reason="length", wall_s=second)
        for n, second in enumerate(seconds.tolist())
    ]


@pytest.mark.parametrize("num_examples", [3, 6, 12, 30])
def test_where_nothing_pays_the_best_of_three_is_seldom_recommended(num_examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 checks of three drafters as fast as plain decoding, 25 % noise each: 10 expected, 18 or more have a chance of 1 %.

    Faults: of 30 examples the best one's own interval recommends it 37 times; with intervals of so few, 6 recommend it 19 times
    and 3 about 100 times.
    """
    monkeypatch.setattr(of_run, "incomparable", lambda *_: None)
    generator, cell = np.random.default_rng(7), cell_of(COPY, 3, 1.3)
    used = 0
    for _ in range(400):
        plain, *others = np.exp(0.25 * generator.standard_normal((4, num_examples)))
        arms = measure.Arms((), (timed("plain", plain), *(timed("m", one) for one in others)))
        checked = [Checked(cell, achieved(arms, index, 3), Missing("none")) for index in (1, 2, 3)]
        used += answer([cell], checked).chosen is not None
    assert used < 18


def test_the_best_of_three_has_its_interval_for_all_three() -> None:
    """By hand: of 30 examples Student's quantile of 29 degrees of freedom at 1 - 0.05 / 3, 2.541, times sqrt(30 / 29)."""
    assert tail_among(3, 30) == pytest.approx(NormalDist().cdf(-2.541 * (30 / 29) ** 0.5), rel=2e-3)
    assert tail_among(1, 10**4) == pytest.approx(0.025, rel=2e-3)
    cell = cell_of(COPY, 3, 1.3)
    one = Checked(cell, Estimate(1.2, 1.1, 1.3, 40, "x"), Missing("none"))
    assert verdict(answer([cell], [one] * 3))[0].endswith("8 examples; its interval holds for the best of the 3 that ran")
    assert "holds for" not in verdict(answer([cell], [one]))[0]


def test_who_wins_already_is_not_said_never_to_win() -> None:
    """By hand: drafts that are free, of a target that verifies in half of a token's time, are never less than twice as fast."""
    best = cell_of(COPY, 3, 1.2)
    slower = Checked(best, Estimate(1.2, 1.1, 1.3, 40, "x"), Missing("none"))
    costs = Costs(gamma=1, rows=1, ar_s=2.0, begin_s=0.0, draft_s=0.0, verify_s=1.0, rest_s=0.0)
    always = Cell(DRAFT, costs, Estimate(3.0, 2.9, 3.1, 40, "x"), 0.5)
    [_, said] = changes(answer([best, always], [slower]))
    assert said == (
        "t5-small, gamma 1 was predicted to win, as it would at any acceptance (here 0.50): "
        "it was not run, or its times were refused: give more --minutes"
    )
    faster = cell_of(DRAFT, 2, 1.4)
    lost = Checked(faster, Estimate(1.1, 1.0, 1.2, 40, "x"), Missing("none"))
    [_, said] = changes(answer([best, faster], [slower, lost]))
    assert said.startswith("t5-small, gamma 2 was predicted to win, as it would from an acceptance of ")
    assert said.endswith(": by what it reached when it ran it is not the best")
    [said] = changes(answer([always], [Checked(always, Estimate(3.0, 2.9, 3.1, 40, "x"), Missing("none"))]))
    assert said == "t5-small, gamma 1 would pay at any acceptance: at least 2.00"


def test_the_crossing_lies_on_a_line_over_the_logarithm_of_the_batch() -> None:
    """By hand: 1.4 at batch 1 and 0.8 at batch 8: two thirds of the way, 8^(2/3) = 4."""
    cell = cell_of(COPY, 3, 1.4)
    one, eight = (
        answer([cell], [Checked(cell, Estimate(speed, speed - 0.01, speed + 0.01, 40, "x"), Missing("none"))], size)
        for size, speed in ((1, 1.4), (8, 0.8))
    )
    assert crossing(one, eight) == pytest.approx(4)
    assert crossing(one, one) is None


def test_three_predictions_that_are_no_neighbours_are_run() -> None:
    cells = [
        cell_of(COPY, 3, 1.5),
        cell_of(COPY, 4, 1.49),
        cell_of(COPY, 5, 1.4),
        cell_of(DRAFT, 1, 1.2),
        cell_of(DRAFT, 2, 1.1),
    ]
    assert [one.name for one in best_three(cells)] == ["copy, gamma 3", "copy, gamma 5", "t5-small, gamma 1"]


GREEDY: dict[str, Any] = {"sampling": SamplingSpec(), "batch_size": 1, "text": True, "max_new_tokens": 96}


def test_transformers_are_told_how_to_sample_and_no_batch() -> None:
    """Unless told, transformers keep the 50 largest logits; assisted generation of several rows is refused there."""
    target, layers = ModelSpec(name="org/model"), DrafterSpec(kind="first-layers", options={"draft_layers": 2})
    small = DrafterSpec(kind="model", model=ModelSpec(name="org/small"))
    for drafter in (COPY, small, layers):
        for more, sampled in (
            ({}, "do_sample=False)"),
            ({"sampling": SamplingSpec(temperature=0.7)}, "do_sample=True, temperature=0.7, top_k=0, top_p=1.0)"),
            (
                {"sampling": SamplingSpec(temperature=1.0, top_k=8, top_p=0.9)},
                "do_sample=True, temperature=1.0, top_k=8, top_p=0.9)",
            ),
        ):
            told = commands([], target, drafter, 4, **{**GREEDY, **more})["transformers"].partition("  #")[0]
            assert told.endswith(f"max_new_tokens=96, {sampled}"), "unless told, transformers generate 20 tokens"
        said = commands([], target, drafter, 4, **{**GREEDY, "batch_size": 2})["transformers"]
        assert said == "drafts for one row at a time alone; give --batch 1"


def test_commands_are_those_of_the_engines() -> None:
    """Ours is read by our own parser, transformers' settings by its configuration, vLLM's as JSON."""
    common, target = ["--task", "text", "--target", "a b", "--temperature", "1.0"], ModelSpec(name="org/model")
    draft = DrafterSpec(kind="model", model=ModelSpec(name="org/small"))
    for drafter in (COPY, draft):
        found = commands(common, target, drafter, 4, **{**GREEDY, "sampling": SamplingSpec(temperature=1.0)})
        words = shlex.split(found["foretoken"])
        args = parser("run").parse_args(words[1:])
        assert (args.gamma, args.target, args.draft) == (4, "a b", None if drafter is COPY else "org/small")
        config = json.loads(shlex.split(found["vLLM"])[-1])
        assert (config["num_speculative_tokens"], config.get("model")) == (4, args.draft)
    settings = GenerationConfig()
    for name in (
        "prompt_lookup_num_tokens",
        "max_matching_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
    ):
        assert hasattr(settings, name)
    assert "prompt_lookup_num_tokens=4" in commands(common, target, COPY, 4, **GREEDY)["transformers"]
    sglang = shlex.split(commands(common, target, draft, 4, **GREEDY)["SGLang"])
    assert sglang[-1] == "5"  # its draft tokens count the token that is pending
    chain = commands(common, target, COPY, 4, **GREEDY)["SGLang"]
    assert "NGRAM --speculative-ngram-max-bfs-breadth 1 --speculative-num-draft-tokens 5" in chain
    assert chain.endswith("# drafts a tree of 4 tokens, not a chain")
    toy = commands(common, ModelSpec(name="zoo:gpt-target"), COPY, 4, **GREEDY)
    assert toy["vLLM"] == "no name there: zoo:gpt-target is made here"


def test_suffixes_are_looked_up_as_here() -> None:
    """vLLM keeps trees of other requests too, unless it is told to keep none."""
    drafter = DrafterSpec(kind="suffix", options={"match_factor": 2.0, "min_share": 0.2})
    found = commands([], ModelSpec(name="org/model"), drafter, 10, **GREEDY)
    command, note = found["vLLM"].split("  # ")
    assert json.loads(shlex.split(command)[-1]) == {
        "method": "suffix",
        "num_speculative_tokens": 10,
        "suffix_decoding_max_cached_requests": 0,
        "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.2,
    }
    assert "arctic-inference" in note
    assert {found[engine] for engine in ("transformers", "SGLang")} == {"has no suffix decoding"}
    words = parser("run").parse_args([*shlex.split(found["foretoken"])[1:], "--task", "text", "--target", "m"])
    assert (words.drafter, words.gamma, words.match_factor, words.min_share) == ("suffix", 10, 2.0, 0.2)


def test_what_an_engine_would_refuse_is_not_advised(tmp_path: Path) -> None:
    """Faults: vLLM draws no drafts of another vocabulary; none reads a draft of a part of one, or a GGUF file by its name."""
    target, sampled = ModelSpec(name="org/model"), {**GREEDY, "sampling": SamplingSpec(temperature=1.0)}
    other = DrafterSpec(kind="tli", model=ModelSpec(name="org/small"))
    config = json.loads(shlex.split(commands([], target, other, 4, **sampled)["vLLM"])[-1])
    assert (config["use_heterogeneous_vocab"], config.get("draft_sample_method")) == (True, None)
    part = tmp_path / "part"
    part.mkdir()
    (part / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 9, KEPT_TOKENS: [1, 2, 5]}))
    found = commands([], target, DrafterSpec(kind="model", model=ModelSpec(name=str(part))), 4, **GREEDY)
    assert all("knows a part of the vocabulary" in found[engine] for engine in ("transformers", "vLLM", "SGLang"))
    found = commands([], ModelSpec(name="model.gguf"), COPY, 4, **GREEDY)
    assert all("is a GGUF file" in found[engine] for engine in ("transformers", "vLLM", "SGLang"))


def test_early_exit_is_told_how_much_to_draft() -> None:
    """Fault: transformers drafted up to 20 tokens, as long as it was sure of each, whatever gamma was advised."""
    layers = DrafterSpec(kind="first-layers", options={"draft_layers": 2})
    said = commands([], ModelSpec(name="org/model"), layers, 3, **GREEDY)["transformers"]
    assert said.startswith("model.generation_config.update(num_assistant_tokens=3, num_assistant_tokens_schedule=")
    assert "assistant_confidence_threshold=0.0" in said
    assert "others draft by all layers" in said


def looked_at(ranks: dict[int, list[int]], num_tokens: int) -> list[Record]:
    early = [EarlyRanks(head="N", layer=layer, ranks=found) for layer, found in ranks.items()]
    return [Record(signature="s", example="a", repeat=0, status="ok", tokens=[7] * num_tokens, early=early)]


def test_what_ppd_could_reach_is_eq_3_and_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without heads Equation 3, for many tokens; with one that costs a layer, of 4 layers and 11 tokens, by hand.

    By hand: 6 layers a token, 2 less for each of 10 that was matched, over plain decoding's 5. Faults: a free head; fewer
    candidates than cores.
    """
    monkeypatch.setattr(measure, "num_cores", lambda: 4)
    many = 4000
    look = looked_at({2: [0, 3] * (many // 2)}, many)
    free = measure.pipelined(look, measure.Depth(4, 0.0, (), (2,)), 1)
    assert isinstance(free, Pipeline)
    assert (free.early_layer, free.candidates, free.match_rate) == (2, 3, 0.5)
    assert free.speed == pytest.approx(1 / half_depth_latency_per_token(0.5), rel=1e-3)
    depth = measure.Depth(4, 1.0, (), (2,))
    sure = measure.pipelined(looked_at({2: [2] * 11}, 11), depth, 1)
    assert isinstance(sure, Pipeline)
    assert sure.speed == pytest.approx(55 / (66 - 20))
    half = measure.pipelined(looked_at({2: [0, 9] * 5 + [0, 9]}, 11), depth, 1)
    assert isinstance(half, Missing)
    assert half.why.startswith("cannot pay, even if its processes were free")
    assert half.why.endswith(f": {55 / 56:.2f} behind layer 2 (match rate 0.50)")


def test_where_ppd_cannot_run_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    look, depth = looked_at({2: [0] * 9}, 9), measure.Depth(4, 0.1, (), (2,))
    monkeypatch.setattr(measure, "num_cores", lambda: 2)
    for found, said in (
        (measure.pipelined(look, measure.Depth(4, 0.1, ()), 1), "its layers only run together"),
        (measure.pipelined(look, depth, 2), "it decodes one row at a time"),
        (measure.pipelined(looked_at({2: []}, 0), depth, 1), "the look's texts are empty"),
    ):
        assert isinstance(found, Missing)
        assert found.why.startswith(said)
    assert isinstance(measure.pipelined(look, depth, 1), Pipeline)
    monkeypatch.setattr(measure, "num_cores", lambda: 1)
    alone = measure.pipelined(look, depth, 1)
    assert isinstance(alone, Missing)
    assert "2 cores" in alone.why


PLAN = Pipeline(early_layer=3, candidates=1, match_rate=0.8, speed=1.4)


@pytest.mark.parametrize(
    ("reached", "drafted", "starts"),
    [
        (
            Estimate(1.3, 1.2, 1.4, 40, "x"),
            1.2,
            "use PPD: PPD is 1.30 [1.20, 1.40] times as fast as plain decoding",
        ),
        (Estimate(1.21, 1.2, 1.4, 40, "x"), 1.2, "use copy, gamma 3: "),  # alike: the prediction stands
        (Estimate(1.3, 0.9, 1.7, 40, "x"), 1.2, "use copy, gamma 3: "),  # not clear of plain decoding
        (Estimate(0.7, 0.6, 0.8, 40, "x"), 0.9, "do not use it: the best is not clear of plain decoding: copy, gamma 3"),
        (Estimate(1.3, 0.9, 1.7, 40, "x"), 0.7, "do not use it: the best is not clear of plain decoding: PPD is 1.30"),
        (Estimate(0.6, 0.5, 0.7, 40, "x"), None, "do not use it: the best is slower: PPD is 0.60"),
        (Estimate(1.3, None, None, 3, "x"), None, "no recommendation: PPD is 1.30 times as fast"),
        (Missing("all examples failed, the first with E"), 0.9, "do not use it: the best is not clear"),
        (Estimate(1.3, 1.2, 1.4, 40, "x"), None, "use PPD: "),
        (Missing("all examples failed, the first with E"), None, "no recommendation: all examples failed, the first with E"),
    ],
)
def test_ppd_is_advised_where_it_is_beyond_the_others(reached: Estimate | Missing, drafted: float | None, starts: str) -> None:
    cells = [] if drafted is None else [cell_of(COPY, 3, drafted)]
    checked = [Checked(one, Estimate(one.speed.value, one.speed.value - 0.1, 1.5, 40, "x"), Missing("none")) for one in cells]
    found = replace(answer(cells, checked), pipeline=PLAN, pipeline_reached=reached)
    [said] = verdict(found)
    assert said.startswith(starts)
    assert ("holds for the best of the 2 that ran" in said) == (drafted is not None)
    assert bool(found.reached) == (drafted is not None or isinstance(reached, Estimate))
    assert choice_of(found) == {"use PPD": "PPD", "use cop": "copy, gamma 3"}.get(starts[:7])


def test_what_would_win_instead_of_ppd_is_measured_against_it() -> None:
    """By hand: drafts that cost a tenth of a token are at most 4 / 1.3 times as fast at gamma 3, and 2 / 1.1 at gamma 1, which
    PPD's 1.9 beats. Where both batch sizes have something that pays, no line between them says where drafting stops to pay."""
    cells = [cell_of(COPY, 3, 1.1), cell_of(DRAFT, 1, 1.05)]
    checked = [Checked(cells[0], Estimate(1.1, 1.05, 1.15, 40, "x"), Missing("none"))]
    led = replace(answer(cells, checked), pipeline=PLAN, pipeline_reached=Estimate(1.9, 1.8, 2.0, 40, "x"))
    [_, copying, small] = changes(led)
    assert copying.startswith("copy, gamma 3 would win from an acceptance of 0.")
    assert small == f"t5-small, gamma 1 would not win at any acceptance: at most {2 / 1.1:.2f}"
    other = answer([cells[0]], [Checked(cells[0], Estimate(1.2, 1.1, 1.3, 40, "x"), Missing("none"))], batch_size=2)
    assert over_batches([led, other]) == ["between batch 1 and 2 the choice changes from PPD to copy, gamma 3"]


@pytest.mark.parametrize("error", [UsageError("its window is too short\nfor it"), WorkerError("it died")])
@pytest.mark.usefixtures("_undisturbed")
def test_an_answer_without_ppd_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Fault: a PPD that was refused, or whose process died, ended the command, whatever else had been measured."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("harness.cli.advise.pipelined", lambda *_: PLAN)
    monkeypatch.setattr(Pipeline, "may_win", lambda *_: True)
    monkeypatch.setattr(PredictivePipelinedDecoding, "generate", fail)
    assert main(words(tmp_path)) in (0, 1)
    out = capsys.readouterr().out.splitlines()
    found, reason = json.loads(out[-1])["answers"][0], str(error).splitlines()[0]
    assert found["checked"]
    assert reason in found["ppd_at_most"]["achieved"]["missing"]
    [bound] = [line for line in out if line.startswith("PPD: ")]  # and no command that would fail
    assert reason in bound


def test_ppd_runs_where_its_bound_is_more_than_any_prediction() -> None:
    """At most 1.4: of predictions 1.3 and 1.5 only the first can be beaten; below 1 nothing is."""
    assert PLAN.may_win([])
    assert PLAN.may_win([cell_of(COPY, 3, 1.3)])
    assert not PLAN.may_win([cell_of(COPY, 3, 1.3), cell_of(DRAFT, 1, 1.5)])
    assert not replace(PLAN, speed=0.98).may_win([cell_of(COPY, 3, 0.9)])


@pytest.mark.usefixtures("_undisturbed")
@pytest.mark.parametrize("may_win", [True, False])
def test_ppd_runs_beside_the_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, may_win: bool
) -> None:
    monkeypatch.setattr("harness.cli.advise.pipelined", lambda *_: PLAN)
    monkeypatch.setattr(Pipeline, "may_win", lambda *_: may_win)
    assert main(words(tmp_path)) in (0, 1)
    out = capsys.readouterr().out.splitlines()
    found = json.loads(out[-1])["answers"][0]
    rows = [line.split()[:4] for line in out if line.startswith("PPD  ")]
    assert rows == ([["PPD", "at", "most", "1.40"]] if may_win else [])
    assert ("achieved" in found["ppd_at_most"]) == may_win
    assert found["intervals_hold_for"] == len(found["checked"]) + may_win
    assert not may_win or found["ppd_at_most"]["achieved"]["value"] > 0


def test_a_method_that_no_flag_leaves_out_may_fail() -> None:
    """Of an asked drafter nothing but failures ends the command; of PPD the answer says why it has no number."""
    good, bad = (
        Record(signature="", example="a", repeat=0, status="ok", tokens=[1], wall_s=0.5),
        Record(signature="", example="a", repeat=0, status="failed", error="no memory"),
    )
    plain = Experiment(task="text", target=ModelSpec(name="m"), method=MethodSpec(name="autoregressive"))
    ppd, copying = (plain.replace(method=one) for one in (MethodSpec(name="ppd"), MethodSpec.of("speculative", drafter=COPY)))
    measure.refuse_failures(measure.Arms((plain, ppd), ([good], [bad])), "check")
    assert measure.affordable([[good], [bad]], 2.0, 1) == 4
    failed = measure.all_failed([bad])
    assert failed is not None
    assert failed.why == "all examples failed, the first with no memory"
    with pytest.raises(UsageError, match=r"check: all examples failed, the first with no memory \(drafter copy\)"):
        measure.refuse_failures(measure.Arms((plain, copying), ([good], [bad])), "check")


@pytest.mark.usefixtures("_undisturbed")
def test_the_command_answers_for_ppd(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With heads that cost nothing it can pay, and its command is one that runs."""
    real = measure.depth_of
    monkeypatch.setattr("harness.cli.advise.depth_of", lambda *given: replace(real(*given), head_layers=0.0))
    monkeypatch.setattr(measure, "num_cores", lambda: 3)
    assert main(words(tmp_path)) in (0, 1)
    out = capsys.readouterr().out.splitlines()
    [bound, command] = [line for line in out if line.startswith("PPD: ")]
    assert "PPD: at most " in bound
    assert "2 candidates after layer " in bound
    given = shlex.split(command)[1:]
    assert given[:2] == ["foretoken", "run"]
    parsed = parser("run").parse_args(given[1:])
    found = json.loads(out[-1])["answers"][0]["ppd_at_most"]
    assert (parsed.early_layer, parsed.candidates) == (found["early_layer"], found["candidates"])
    assert 1 < found["speed"] <= 2


@pytest.fixture
def _undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share their machine, whose times would be refused."""
    ignored: Callable[..., Any] = lambda *_: None  # noqa: E731
    monkeypatch.setattr(measure, "incomparable", ignored)
    monkeypatch.setattr(of_run, "incomparable", ignored)


def words(records: Path, *more: str) -> Sequence[str]:
    target = str(CHECKPOINTS / "llama-target")
    sizes = ("--minutes", "0.05", "--max-new-tokens", "24", "--threads", "1", "--quiet", "--records", str(records))
    return ["advise", "--target", target, "--task", "text", "--data", "toy", *sizes, *more]


def test_a_stage_takes_as_many_whole_batches_as_its_seconds_allow() -> None:
    """Two arms take a second an example together; one that failed does not count."""
    rows = [Record(signature="", example=str(one), repeat=0, status="ok", tokens=[1], wall_s=0.5) for one in range(4)]
    failed = Record(signature="", example="4", repeat=0, status="failed", error="no memory")
    assert [measure.affordable([rows, [*rows, failed]], 7.9, size) for size in (1, 2, 4)] == [7, 6, 4]


@pytest.mark.parametrize("graphs", ["off", "on"])
@pytest.mark.usefixtures("_undisturbed")
def test_the_command_measures_predicts_and_checks_and_goes_on(
    graphs: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again, as after a kill, it records nothing anew and says the same. Whatever the machine does, there is time for as
    many examples as predictions need."""
    monkeypatch.setattr(measure, "affordable", lambda arms, seconds, batch_size: 12)
    asked = words(tmp_path, "--draft", str(CHECKPOINTS / "llama-draft"), "--batch", "2", "--graphs", graphs)
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert ("graphs are on" in out) == (graphs == "on")
    described = [path.read_text(encoding="utf8") for path in tmp_path.glob("*.json")]
    assert described
    assert all(('"graphs"' in text) == (graphs == "on") for text in described)
    document = json.loads(out.splitlines()[-1])
    assert [one["batch_size"] for one in document["answers"]] == [2]
    for one in document["answers"]:
        assert {cell["drafter"] for cell in one["predicted"]} >= {"llama-draft", "copy", "bigram"}
        assert len(one["checked"]) == 3
        assert one["examples"]["check"] > one["examples"]["pilot"]
        assert all(checked["achieved"]["value"] > 0 for checked in one["checked"])
    page = Path(document["page"])
    assert {path.suffix for path in page.parent.iterdir() if path.is_file()} == {".html", ".json", ".png", ".svg"}
    [item] = advice_items(page.parent)
    assert item.title in Path(page).read_text(encoding="utf8")
    assert all(path.is_file() for path in item.files)
    sizes = {path: path.stat().st_size for path in tmp_path.glob("*.jsonl")}
    assert main(asked) == 0
    assert capsys.readouterr().out == out
    assert {path: path.stat().st_size for path in tmp_path.glob("*.jsonl")} == sizes


def test_our_command_runs_as_it_was_measured(tmp_path: Path) -> None:
    for more in ((), ("--seed", "7", "--dtype", "float64", "--graphs", "on")):
        args = parser().parse_args(words(tmp_path, *more))
        plain, cell = plain_experiment(args), SimpleNamespace(drafter=COPY, gamma=3)
        own = shlex.split(_commands(cell, args, plain, 1)[0])
        assert plain.graphs == bool(more)
        assert [word for word in own if word in more] == list(more)


def test_a_draft_of_another_vocabulary_is_told_of_tli(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    other = shutil.copytree(CHECKPOINTS / "llama-draft", tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf8"))
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf8")
    assert main(words(tmp_path / "records", "--draft", str(other))) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "tokenizers differ" in line
    assert "--drafter tli" in line


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--draft", str(CHECKPOINTS / "specdec-verifier")), "kinds differ"),
        (("--draft", "./nowhere"), "./nowhere"),
        (("--draft", str(CHECKPOINTS / "llama-draft"), "--drafter", "tli", "--graphs", "on"), "graphs: drafter 'tli' has no"),
        (("--batch", "0,2"), "expected integers of at least 1"),
        (("--minutes", "0"), "--minutes"),
        (("--task", "poetry"), "task 'poetry'"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture, more: Sequence[str], expected: str) -> None:
    try:
        status = main(words(tmp_path, *more))
    except SystemExit as stop:
        status = stop.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert (status, len(lines)) == (2, 1), lines
    assert expected in lines[0]


def test_one_prompt_is_too_few(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data = tmp_path / "one.csv"
    data.write_text('prompt\n"' + "abc def " * 20 + '"\n', encoding="utf8")
    status = main(words(tmp_path / "records", "--data", str(data)))
    [line] = capsys.readouterr().err.splitlines()
    assert status == 2
    assert "one prompt; expected 2 or more" in line
