"""The benchmark: both sides do the same work, and the cost model's arithmetic is the issue's formula."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import GenerationConfig

from harness import bench, zoo
from harness.bench import FAMILIES, Pair, Sizes
from harness.cli import main
from harness.experiment import ModelSpec
from harness.models import LoadedModel, load_model, pin_model
from methods.autoregressive import Autoregressive
from methods.types import Generation, Step, Stop

NAMES = ("gpt-target", "gpt-draft", "t5-xxl", "t5-small")
PAIRS = {"gpt": ("gpt-target", "gpt-draft"), "t5": ("t5-xxl", "t5-small")}
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def models(zoo_cache: Path) -> dict[str, LoadedModel]:
    zoo.ensure(NAMES, "test", "toy", workers=0)
    return {name: load_model(pin_model(ModelSpec(name=f"zoo:{name}"), "test", "toy")) for name in NAMES}


@pytest.fixture(scope="module", params=PAIRS)
def pair(models: dict[str, LoadedModel], request: pytest.FixtureRequest) -> Pair:
    target, draft = (models[name] for name in PAIRS[request.param])
    return Pair(request.param, target, draft, bench._prompts(FAMILIES[request.param], target, 3, "toy"))


def generated(pair: Pair) -> list[list[int]]:
    method, session, stop = Autoregressive(), pair.target.session(), Stop(max_new_tokens=NUM_TOKENS)
    return [bench.ours(method, session, prompt, stop).tokens for prompt in pair.prompts]


def test_both_sides_give_the_same_tokens(pair: Pair) -> None:
    reference = bench.reference_model(pair.target)
    assert generated(pair) == [bench.theirs(reference, prompt, NUM_TOKENS) for prompt in pair.prompts]


def test_reference_runs_past_eos(pair: Pair) -> None:
    """Even where every token ends a row by the model's own settings: then only the first token would be left."""
    reference, prompt = bench.reference_model(pair.target), pair.prompts[0]
    everything = list(range(1, pair.target.vocab_size))
    stopping = GenerationConfig(
        eos_token_id=everything,
        pad_token_id=0,
        decoder_start_token_id=reference.generation_config.decoder_start_token_id,
    )
    assert len(bench.theirs(reference, prompt, NUM_TOKENS, generation_config=stopping)) < NUM_TOKENS
    assert len(bench.theirs(reference, prompt, NUM_TOKENS)) == NUM_TOKENS
    assert len(bench.theirs(reference, prompt, NUM_TOKENS, assistant_model=bench.reference_model(pair.draft))) == NUM_TOKENS


def test_outputs_that_differ_are_explained_or_count_against_the_row(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, tokens = bench.reference_model(pair.target), generated(pair)
    assert bench.compare_outputs(reference, pair.prompts, tokens, tokens) == ("3 of 3 outputs equal", True)
    other = [*tokens[:2], [*tokens[2][:5], (tokens[2][5] + 1) % pair.target.vocab_size, *tokens[2][6:]]]
    assert bench.compare_outputs(reference, pair.prompts, tokens, other) == ("2 of 3 outputs equal, 1 DIFFER", False)
    monkeypatch.setattr(bench, "NEAR_TIE", float("inf"))
    explained = ("2 of 3 outputs equal, 1 part at a near-tie", True)
    assert bench.compare_outputs(reference, pair.prompts, tokens, other) == explained


def test_interleaving_runs_every_call_on_every_prompt_in_rotating_order() -> None:
    log: list[tuple[str, int]] = []
    timed = bench.interleaved([lambda i: log.append(("a", i)) or i, lambda i: log.append(("b", i)) or 10 * i], 2, 2)
    assert log[:2] == [("a", 0), ("b", 0)]  # untimed
    assert sorted(log[2:]) == sorted([(name, i) for name in "ab" for i in (0, 1)] * 2)
    assert {log.index(("a", 0), 2) < log.index(("b", 0), 2), log[6:].index(("a", 0)) < log[6:].index(("b", 0))} == {True, False}
    assert timed.results == [[[0, 0], [1, 1]], [[0, 0], [10, 10]]]
    assert timed.totals(1, float).tolist() == [0.0, 20.0]


def test_ratio_is_of_totals_not_a_mean_of_ratios() -> None:
    seconds, counts = np.array([[1.0, 9.0], [2.0, 2.0]]), np.array([[1.0, 1.0], [1.0, 3.0]])
    estimate = bench.ratio_of_rates(seconds, counts, "")
    assert estimate.value == pytest.approx((10 / 2) / (4 / 4))  # the mean of the ratios would be 7
    assert (estimate.low, estimate.high) == (pytest.approx(0.5), pytest.approx(13.5))  # all draws of one prompt


def test_cost_model_is_the_issues_formula() -> None:
    def step(drafted: int, emitted: int, draft_s: float, verify_s: float, round_s: float) -> Step:
        return Step([0] * drafted, emitted - 1, emitted, draft_s=draft_s, verify_s=verify_s, round_s=round_s)

    plain = [step(0, 1, 0.0, 0.0, seconds) for seconds in (9e-3, 11e-3)]
    drafted = [step(4, 5, 4e-3, 12e-3, 17e-3), step(4, 3, 8e-3, 14e-3, 23e-3), step(1, 1, 1e-3, 9e-3, 10e-3)]
    costs = bench.costs_of(plain, drafted, 4)
    assert (costs.ar_s, costs.draft_s) == (pytest.approx(10e-3), pytest.approx(1.5e-3))
    assert (costs.verify_s, costs.round_s) == (pytest.approx(13e-3), pytest.approx(1e-3))
    assert costs.speedup == pytest.approx(3.0 * 10 / (4 * 1.5 + 13 + 1))


def test_speed_up_is_per_emitted_token_and_the_prediction_is_of_its_rounds(
    models: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made-up rounds: 10 ms a plain token, 24 ms a round of 4 drafts that emits 3."""
    stops = []

    def made_up(method: object, session: object, prompt: object, stop: Stop, clock: object = None) -> Generation:
        stops.append(stop)
        if isinstance(method, Autoregressive):
            return Generation([1] * 6, [Step([], 0, 1, round_s=10e-3)] * 6, "eos")
        return Generation([1] * 6, [Step([0] * 4, 2, 3, draft_s=8e-3, verify_s=14e-3, round_s=24e-3)] * 2, "eos")

    monkeypatch.setattr(bench, "ours", made_up)
    pair = Pair("made up", models["gpt-target"], models["gpt-draft"], [(1,), (2,)])
    speed, cost = bench.bench_speedup(pair, 4, 6, 2)
    assert {stop.token_ids for stop in stops} == {frozenset(models["gpt-target"].eos_token_ids)} != {frozenset()}
    assert cost.estimate.value == pytest.approx(1.0)
    assert cost.met
    assert "predicts 1.25, rounds measured 1.25" in cost.detail
    assert "3.00 tokens a step" in speed.detail
    assert "2 of 2 outputs equal" in speed.detail


def test_rows_of_a_family(models: dict[str, LoadedModel]) -> None:
    rows = list(bench.bench_family(FAMILIES["gpt"], Sizes(3, 2, 1, 16), "test", "toy", 10))
    kinds = ["autoregressive", "autoregressive", "round", "speed-up", "cost model", "memory"]
    assert [row.name.split(" zoo:")[0] for row in rows] == kinds
    assert all(set(row.as_dict()) == {"name", "estimate", "detail", "goal", "met"} for row in rows)
    assert all("2 of 2 outputs equal" in row.detail for row in rows[:4])
    assert all(row.estimate.value > 0 and row.estimate.low is not None for row in rows[:5])
    assert "after 2 examples" in rows[5].detail
    assert json.loads(json.dumps(rows[0].as_dict()))["estimate"]["value"] == rows[0].estimate.value


def test_dry_run_names_models_and_whether_they_are_cached(
    models: dict[str, LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--dry-run", "--profile", "test", "--only", "gpt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["gpt-target", "gpt-draft"]
    assert all(line.endswith("cached") for line in lines)
