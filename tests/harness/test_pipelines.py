"""The accounting of a pipeline's time, from hand-made records whose every number follows from a few parameters."""

import random
from dataclasses import replace
from itertools import cycle, islice
from types import SimpleNamespace

import pytest

from harness.core.experiment import Experiment, MethodSpec
from harness.core.records import Divergence, Record
from harness.measures.pipelines import UNITS, UNTIMED, Account, account, untimed
from harness.measures.statistics import Missing
from methods.ppd import theory
from methods.steps import PARTS

DEPTH, EARLY, TOKENS = 8, 5, 12
PLAIN_S, LAYER_S, EARLY_HEAD_S, POST_S, HEAD_S, WAIT_S, ADOPT_S = 0.01, 1.3e-3, 7e-4, 1e-4, 6e-4, 3e-4, 2e-4


@pytest.fixture
def plain(synthetic: SimpleNamespace) -> Experiment:
    return synthetic.plain_experiment(probes=())


@pytest.fixture
def piped(plain: Experiment) -> Experiment:
    return plain.replace(method=MethodSpec.of("ppd", early_layer=EARLY, candidates=1))


def found(result: Account | Missing | None) -> dict[str, float]:
    assert isinstance(result, Account)
    return {name: estimate.value for name, estimate in result.estimates.items()}


def arbitrary(record: Record, seed: int) -> Record:
    """The same matches with parts of any length; the rounds last as long as their parts, as the pipeline's do."""
    draw = random.Random(seed)
    record.steps.parts = [[draw.uniform(1e-5, 5e-3) for _ in PARTS] for _ in record.steps.parts]
    record.steps.round_s = [sum(row) for row in record.steps.parts]
    record.wall_s = sum(record.steps.round_s) + draw.uniform(0, 0.1)
    return record


@pytest.mark.parametrize("early_head_s", [7e-4, 4e-4])
def test_every_quantity_by_hand(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment, early_head_s: float) -> None:
    """12 tokens, of which the first 11 are guessed and hit, miss, hit in turn: 7 hits spare 3 of 8 layers each."""
    baseline = [synthetic.plain(plain, "a", TOKENS, PLAIN_S, start_s=0.03)]
    record = synthetic.piped(piped, "a", TOKENS, (True, False, True), DEPTH, EARLY, early_head_s=early_head_s, start_s=0.02)
    hits, guessed, plain_head = 7, 11, min(HEAD_S, early_head_s)
    layer = (PLAIN_S - plain_head) / DEPTH
    layers = (DEPTH * TOKENS - 3 * hits) * LAYER_S / TOKENS
    parts = {"early_head": guessed * early_head_s / TOKENS, "post": guessed * POST_S / TOKENS, "head": HEAD_S}
    parts |= {"wait": hits * WAIT_S / TOKENS, "adopt": hits * ADOPT_S / TOKENS}
    piped_s = layers + sum(parts.values())
    attainable = 3 * hits / TOKENS * layer - parts["early_head"]
    expected = {
        "match_rate": 100 * hits / guessed,
        "latency_s": TOKENS * piped_s + 0.02,
        "baseline_latency_s": TOKENS * PLAIN_S + 0.03,
        "throughput": TOKENS / (TOKENS * piped_s + 0.02),
        "baseline_throughput": TOKENS / (TOKENS * PLAIN_S + 0.03),
        "speedup": (TOKENS * PLAIN_S + 0.03) / (TOKENS * piped_s + 0.02),
        "saved_frac": 100 * (PLAIN_S - piped_s) / PLAIN_S,
        "theorem_frac": 100 * 3 * hits / (DEPTH * TOKENS),
        "attainable_frac": 100 * attainable / PLAIN_S,
        "reached_frac": 100 * (PLAIN_S - piped_s) / attainable,
        "break_even_rate": 100 * early_head_s / (3 * layer),
        "slower_layers_ms": 1e3 * (layers - (DEPTH - 3 * hits / TOKENS) * layer),
        "slower_head_ms": 1e3 * (HEAD_S - plain_head),
        **{f"{name}_ms": 1e3 * seconds for name, seconds in parts.items()},
        "layers_ms": 1e3 * layers,
        "round_ms": 1e3 * piped_s,
        "plain_round_ms": 1e3 * PLAIN_S,
    }
    result = found(account([baseline], [record], DEPTH))
    assert result == pytest.approx(expected, abs=1e-12)
    assert set(result) == set(UNITS)
    assert account([baseline], [record], DEPTH).estimates["speedup"].low is None


@pytest.mark.parametrize("seed", range(12))
def test_the_identity_holds_whatever_the_times(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment, seed: int
) -> None:
    """attainable - saved is what its terms say, and the saving of Theorem 4.1 is that of these matches."""
    draw = random.Random(seed)
    lengths = [draw.randint(3, 20) for _ in range(3)]
    baseline = [synthetic.plain(plain, str(i), n, draw.uniform(0.005, 0.02)) for i, n in enumerate(lengths)]
    records = []
    for index, length in enumerate(lengths):
        hits = [draw.random() < 0.7 for _ in range(length)]
        records.append(arbitrary(synthetic.piped(piped, str(index), length, hits, DEPTH, EARLY), 100 * seed + index))
    result = found(account([baseline], records, DEPTH))
    saved = result["saved_frac"] / 100 * result["plain_round_ms"]
    attainable = result["attainable_frac"] / 100 * result["plain_round_ms"]
    lost = sum(result[f"{name}_ms"] for name in ("slower_layers", "slower_head", "post", "wait", "adopt"))
    assert attainable - saved == pytest.approx(lost)
    assert result["round_ms"] == pytest.approx(result["layers_ms"] + sum(result[f"{p}_ms"] for p in PARTS if "layers" not in p))
    assert ("reached_frac" in result) == (attainable > 0 and seed not in (5, 7, 10, 11)), "there it may be nothing"
    if "reached_frac" in result:
        assert result["reached_frac"] == pytest.approx(100 * saved / attainable)
    tokens = sum(lengths)
    layers = sum(DEPTH * len(r.steps.matched) - (DEPTH - EARLY) * sum(map(bool, r.steps.matched[:-1])) for r in records)
    assert result["theorem_frac"] == pytest.approx(100 * (1 - layers / (DEPTH * tokens)))
    rate = result["match_rate"] / 100
    by_theorem = sum(theory.latency(DEPTH, EARLY, tokens / 3, rate) for _ in lengths) / (DEPTH * tokens)
    assert result["theorem_frac"] == pytest.approx(100 * (1 - by_theorem))


def test_attainable_is_the_theorys(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """Where every round reads the early head (EOS ends the texts), what PPD saves over greedy with the same costs."""
    baseline = [synthetic.plain(plain, name, TOKENS, PLAIN_S) for name in "ab"]
    records = [synthetic.piped(piped, name, TOKENS, (True, True, False), DEPTH, EARLY) for name in "ab"]
    for record in records:
        steps = record.steps
        steps.matched[-1], steps.candidates[-1], record.stop_reason = True, [record.tokens[-1]], "eos"
        steps.parts[-1][1:3] = [EARLY_HEAD_S, POST_S]
        steps.round_s[-1] = sum(steps.parts[-1])
    result = found(account([baseline], records, DEPTH))
    layer = (PLAIN_S - HEAD_S) / DEPTH
    costs = theory.Costs(layer=layer, early_head=EARLY_HEAD_S, final_head=HEAD_S)
    expected = DEPTH * layer + HEAD_S - theory.expected_latency(DEPTH, EARLY, TOKENS, 8 / 11, costs) / TOKENS
    assert result["attainable_frac"] == pytest.approx(100 * float(expected) / PLAIN_S)
    assert result["match_rate"] == pytest.approx(100 * 9 / 12)
    assert result["theorem_frac"] == pytest.approx(100 * 8 * 3 / (DEPTH * TOKENS)), "the last token's match spares nothing"


def test_at_the_break_even_rate_nothing_is_attainable(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """Every second guess matches and spares 3 of 8 layers; the early head takes what 1.5 layers take."""
    layer = (PLAIN_S - HEAD_S) / DEPTH
    hits = [True, False] * 10
    record = synthetic.piped(piped, "a", 21, hits, DEPTH, EARLY, early_head_s=1.5 * layer)
    result = found(account([[synthetic.plain(plain, "a", 21, PLAIN_S)]], [record], DEPTH))
    assert result["break_even_rate"] == pytest.approx(result["match_rate"]) == pytest.approx(50)
    assert result["attainable_frac"] == pytest.approx(0, abs=1e-9)


def test_a_pause_in_one_text_moves_no_break_even_rate(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """Of sums it did: one pause holds half of all heads' time."""
    names = [str(index) for index in range(9)]
    baseline = [synthetic.plain(plain, name, TOKENS, PLAIN_S) for name in names]
    records = [synthetic.piped(piped, name, TOKENS, (True, False), DEPTH, EARLY) for name in names]
    before = found(account([baseline], records, DEPTH))
    parts = records[4].steps.parts[0]
    parts[PARTS.index("early_head")] += sum(part[PARTS.index("early_head")] for one in records for part in one.steps.parts)
    records[4].steps.round_s[0] = sum(parts)
    after = found(account([baseline], records, DEPTH))
    assert after["break_even_rate"] == pytest.approx(before["break_even_rate"])
    assert after["early_head_ms"] == pytest.approx(2 * before["early_head_ms"])


def test_a_text_whose_layers_took_no_time_never_breaks_even(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment
) -> None:
    """By noise a plain round may take less than its head; fault: the rate was below 0, the best of all texts."""
    baseline = [synthetic.plain(plain, name, TOKENS, seconds) for name, seconds in (("a", HEAD_S / 2), ("b", PLAIN_S))]
    records = [synthetic.piped(piped, name, TOKENS, (True, False), DEPTH, EARLY) for name in "ab"]
    assert found(account([baseline[1:]], records[1:], DEPTH))["break_even_rate"] > 0
    assert "break_even_rate" not in found(account([baseline], records, DEPTH)), "half of the texts never do"


def test_a_head_on_all_threads_is_as_much_faster_as_its_rounds(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment
) -> None:
    """Greedy decoding on two threads, of one on which it and the pipeline's head take twice as long."""
    record = synthetic.piped(piped, "a", TOKENS, (True, False, True), DEPTH, EARLY)
    both, one = ([synthetic.plain(plain, "a", TOKENS, seconds)] for seconds in (PLAIN_S, 2 * PLAIN_S))
    result = account([both, one], [record], DEPTH)
    assert isinstance(result, Account)
    assert result.baseline == 0
    layer = (PLAIN_S - HEAD_S / 2) / DEPTH
    assert found(result)["slower_head_ms"] == pytest.approx(1e3 * HEAD_S / 2)
    assert found(result)["attainable_frac"] == pytest.approx(100 * (7 * 3 * layer - 11 * EARLY_HEAD_S) / TOKENS / PLAIN_S)


def test_the_faster_plain_arm_is_that_with_the_faster_tokens(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment
) -> None:
    """One that parts at a near-tie and ends early takes less time as a whole, and more a token."""
    record = synthetic.piped(piped, "a", TOKENS, depth=DEPTH, early=EARLY)
    whole, short = [synthetic.plain(plain, "a", TOKENS, PLAIN_S)], [synthetic.plain(plain, "a", TOKENS - 2, 1.05 * PLAIN_S)]
    result = account([whole, short], [record], DEPTH)
    assert isinstance(result, Account)
    assert result.baseline == 0


@pytest.mark.parametrize(("slow_s", "is_refused"), [(1.0, False), (2.5, True)])
def test_rounds_that_ran_all_layers_show_a_busy_machine(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment, slow_s: float, is_refused: bool
) -> None:
    """Every third text slow, or only matched more often: its rounds behind a match are shorter, which is no sign."""
    names = [str(index) for index in range(12)]
    baseline = [synthetic.plain(plain, name, 40, PLAIN_S) for name in names]
    records = []
    for index, name in enumerate(names):
        record = synthetic.piped(piped, name, 40, (True, index % 3 == 0, False), DEPTH, EARLY)
        if index % 3 == 0:
            record.steps.round_s = [slow_s * seconds for seconds in record.steps.round_s]
        records.append(record)
    assert isinstance(account([baseline], records, DEPTH), Missing) == is_refused


def test_a_perfect_pipeline_reaches_all(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    layer = (PLAIN_S - HEAD_S) / DEPTH
    record = synthetic.piped(piped, "a", TOKENS, depth=DEPTH, early=EARLY, layer_s=layer, post_s=0, wait_s=0, adopt_s=0)
    result = found(account([[synthetic.plain(plain, "a", TOKENS, PLAIN_S)]], [record], DEPTH))
    assert result["reached_frac"] == pytest.approx(100)
    assert result["slower_layers_ms"] == pytest.approx(0, abs=1e-12)
    assert result["saved_frac"] < result["theorem_frac"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("post_s", "post_ms"),
        ("wait_s", "wait_ms"),
        ("adopt_s", "adopt_ms"),
        ("layer_s", "slower_layers_ms"),
        ("head_s", "slower_head_ms"),
    ],
)
def test_each_delay_goes_to_its_own_term(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment, change: str, name: str
) -> None:
    baseline = [synthetic.plain(plain, "a", TOKENS, PLAIN_S)]
    terms = ["post_ms", "wait_ms", "adopt_ms", "slower_layers_ms", "slower_head_ms", "early_head_ms", "attainable_frac"]
    usual = {"post_s": POST_S, "wait_s": WAIT_S, "adopt_s": ADOPT_S, "layer_s": LAYER_S, "head_s": EARLY_HEAD_S}
    before = found(account([baseline], [synthetic.piped(piped, "a", TOKENS, depth=DEPTH, early=EARLY, **usual)], DEPTH))
    usual[change] *= 1.5
    record = synthetic.piped(piped, "a", TOKENS, depth=DEPTH, early=EARLY, **usual)
    after = found(account([baseline], [record], DEPTH))
    changed = [term for term in terms if after[term] != pytest.approx(before[term])]
    assert changed == [name]
    assert after[name] - before[name] == pytest.approx(after["round_ms"] - before["round_ms"])


def test_the_faster_baseline_is_chosen_over_the_same_examples(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment
) -> None:
    """The slow arm completed fewer examples, so its total is the smaller one; the fast arm is faster all the same."""
    slow = [synthetic.plain(plain, "a", TOKENS, 0.011), synthetic.failed(plain, "b"), synthetic.failed(plain, "c")]
    fast = [synthetic.plain(plain, name, TOKENS, 0.009) for name in "abc"]
    records = [synthetic.piped(piped, name, TOKENS, depth=DEPTH, early=EARLY) for name in "abc"]
    for order, expected in (([slow, fast], 1), ([fast, slow], 0)):
        result = account(order, records, DEPTH)
        assert isinstance(result, Account)
        assert result.baseline == expected
        assert result.estimates["plain_round_ms"].value == pytest.approx(9)
        assert result.estimates["speedup"].n == 1
    assert account([fast], records, DEPTH).estimates["speedup"].n == 3


def test_repeats_are_paired_and_failures_left_out(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    baseline = [synthetic.plain(plain, "a", TOKENS, s, repeat=r) for r, s in enumerate((0.010, 0.012))]
    baseline += [synthetic.plain(plain, "b", TOKENS, 5.0), synthetic.failed(plain, "c")]
    records = [synthetic.piped(piped, "a", TOKENS, depth=DEPTH, early=EARLY, repeat=r) for r in (0, 1)]
    records += [synthetic.failed(piped, "b"), synthetic.piped(piped, "c", TOKENS, depth=DEPTH, early=EARLY, layer_s=9.0)]
    result = account([baseline], records, DEPTH)
    assert isinstance(result, Account)
    assert result.estimates["plain_round_ms"].value == pytest.approx(11)
    assert result.estimates["speedup"].n == 1
    assert result.estimates["latency_s"].value == pytest.approx(records[0].wall_s), "repeats are averaged, not summed"
    assert result.estimates["baseline_latency_s"].value == pytest.approx(0.011 * TOKENS)
    assert account([baseline], [synthetic.failed(piped, "a")], DEPTH) is None
    assert account([[synthetic.failed(plain, "a")]], records, DEPTH) is None
    assert account([baseline, []], records, DEPTH) is None


def test_outputs_of_other_lengths_are_compared_by_the_token(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment
) -> None:
    baseline = [synthetic.plain(plain, "a", 10, PLAIN_S)]
    record = synthetic.piped(piped, "a", 30, (False,), DEPTH, EARLY)
    result = found(account([baseline], [record], DEPTH))
    assert result["speedup"] == pytest.approx(PLAIN_S / (record.wall_s / 30))
    assert result["saved_frac"] == pytest.approx(100 * (1 - record.wall_s / 30 / PLAIN_S))
    assert "reached_frac" not in result, "nothing matched: nothing was attainable"
    assert result["attainable_frac"] < 0


def test_no_share_of_a_saving_that_may_be_nothing(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """Four texts that match always and four that never do; a resample of the latter alone attains less than nothing."""
    names = "abcdefgh"
    baseline = [synthetic.plain(plain, name, TOKENS, PLAIN_S) for name in names]
    costs = {"depth": DEPTH, "early": EARLY, "early_head_s": 1.6e-3}
    records = [synthetic.piped(piped, name, TOKENS, (name < "e",), **costs) for name in names]
    result = account([baseline], records, DEPTH)
    assert isinstance(result, Account)
    assert result.estimates["attainable_frac"].low < 0 < result.estimates["attainable_frac"].value
    assert "reached_frac" not in result.estimates


def test_what_must_not_be_compared_is_refused(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    names = [str(index) for index in range(8)]
    good = [synthetic.plain(plain, name, TOKENS, PLAIN_S) for name in names]
    drifting = [synthetic.plain(plain, name, TOKENS, PLAIN_S * (1 + (name > "3"))) for name in names]
    records = [synthetic.piped(piped, name, TOKENS, depth=DEPTH, early=EARLY) for name in names]
    assert isinstance(account([good, good], records, DEPTH), Account)
    elsewhere = [replace(record, run="another") for record in good]
    for baselines in ([good, drifting], [drifting, good]):
        refused = account(baselines, records, DEPTH)
        assert isinstance(refused, Missing)
        assert "drifted by +100%" in refused.why
    for baselines in ([good, elsewhere], [elsewhere]):
        refused = account(baselines, records, DEPTH)
        assert isinstance(refused, Missing)
        assert "different processes" in refused.why
    compared = account([good], records, DEPTH)
    assert isinstance(compared, Account)
    assert untimed(records, DEPTH) == {name: compared.estimates[name] for name in UNTIMED}, "a noisy machine takes none away"
    assert set(UNTIMED) <= set(UNITS)
    assert untimed([], DEPTH) == {}
    tie = Divergence(position=3, margin=1e-6, bound=1e-4, replays_agree=True, kind="near-tie")
    records[1].divergence = tie
    assert isinstance(account([good], records, DEPTH), Account)
    records[2].divergence = replace(tie, margin=1.0, kind="bug")
    refused = account([good], records, DEPTH)
    assert isinstance(refused, Missing)
    assert "1 of 8 outputs differ" in refused.why


def test_examples_that_were_resumed_elsewhere_are_left_out(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment
) -> None:
    """Killed between two arms: the second plain arm of "b" ran in the next process."""
    first = [synthetic.plain(plain, name, TOKENS, PLAIN_S) for name in "ab"]
    second = [synthetic.plain(plain, name, TOKENS, 1.2 * PLAIN_S) for name in "ab"]
    second[1].run = "later"
    records = [synthetic.piped(piped, name, TOKENS, depth=DEPTH, early=EARLY) for name in "ab"]
    result = account([first, second], records, DEPTH)
    assert isinstance(result, Account)
    assert (result.baseline, result.estimates["speedup"].n) == (0, 1)


def test_a_simulated_clock_knows_rounds_alone(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """Its wall-clock holds every candidate's work one after another; both arms' prompts are left out."""
    baseline = [synthetic.plain(plain, "a", TOKENS, PLAIN_S, start_s=0.5)]
    record = synthetic.piped(piped, "a", TOKENS, depth=DEPTH, early=EARLY, start_s=40.0)
    rounds = sum(record.steps.round_s)
    result = found(account([baseline], [record], DEPTH, simulated=True))
    assert result["latency_s"] == pytest.approx(rounds)
    assert result["baseline_latency_s"] == pytest.approx(PLAIN_S * TOKENS)
    assert result["speedup"] == pytest.approx(PLAIN_S * TOKENS / rounds)
    assert found(account([baseline], [record], DEPTH))["latency_s"] == pytest.approx(rounds + 40)


def test_an_adaptive_arm_spares_what_its_own_layers_do(
    synthetic: SimpleNamespace, plain: Experiment, piped: Experiment
) -> None:
    """Two texts at layer 4 and one at 6, always matched: 11 matches spare 4, 4 and 2 of 8 layers each."""
    layers = {"a": 4, "b": 4, "c": 6}
    baseline = [synthetic.plain(plain, name, TOKENS, PLAIN_S) for name in layers]
    records = [synthetic.piped(piped, name, TOKENS, (True,), DEPTH, early) for name, early in layers.items()]
    result = found(account([baseline], records, DEPTH))
    assert result["theorem_frac"] == pytest.approx(100 * 11 * (4 + 4 + 2) / (DEPTH * TOKENS * 3))
    layer = (PLAIN_S - HEAD_S) / DEPTH
    spared = 11 * (4 + 4 + 2) / (TOKENS * 3)
    assert result["slower_layers_ms"] == pytest.approx(1e3 * (DEPTH - spared) * (LAYER_S - layer))


def test_intervals_hold_the_value(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    draw = random.Random(3)
    names = [str(index) for index in range(12)]
    constant: list[str] = []
    baseline = [synthetic.plain(plain, name, TOKENS, draw.uniform(0.0095, 0.0105)) for name in names]
    patterns = [list(islice(cycle((True, draw.random() < 0.5, True)), TOKENS)) for _ in names]
    records = [synthetic.piped(piped, name, TOKENS, hits, DEPTH, 4) for name, hits in zip(names, patterns, strict=True)]
    result = account([baseline], records, DEPTH)
    assert isinstance(result, Account)
    assert set(result.estimates) == set(UNITS)
    for name, estimate in result.estimates.items():
        assert estimate.unit == UNITS[name]
        if estimate.low is None:  # the same in every example
            constant.append(name)
        else:
            assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9, name
        assert estimate.n == 12
    assert "saved_frac" not in constant
    assert len(constant) < len(UNITS) / 2, constant


def test_plain_decoding_is_taken_at_its_best(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """One arm reads prompts faster, the other decodes faster: what a user could have at once is what the pipeline must beat."""
    reads = [synthetic.plain(plain, "a", TOKENS, 0.012, start_s=0.01)]
    decodes = [synthetic.plain(plain, "a", TOKENS, 0.010, start_s=0.08)]
    records = [synthetic.piped(piped, "a", TOKENS, depth=DEPTH, early=EARLY)]
    for arms, fastest in (([reads, decodes], 1), ([decodes, reads], 0)):
        result = account(arms, records, DEPTH)
        assert isinstance(result, Account)
        assert result.baseline == fastest
        assert result.estimates["baseline_latency_s"].value == pytest.approx(0.010 * TOKENS + 0.01)
        assert result.estimates["plain_round_ms"].value == pytest.approx(10)


def test_shares_stay_shares_where_replicas_differ(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """Three replicas whose match rates are far apart: Student's interval would reach beyond 100 %."""
    rates = {"a": [True] * TOKENS, "b": [True] * TOKENS, "c": [True, False] * (TOKENS // 2)}
    records = [
        replace(synthetic.piped(piped, f"{name}{number}", TOKENS, hits, DEPTH, EARLY), signature=name)
        for name, hits in rates.items()
        for number in range(10)
    ]
    shown = untimed(records, DEPTH)["match_rate"]
    assert shown.low is not None
    assert shown.high == 100.0
    assert shown.low < 50


def test_of_three_replicas_a_saving_may_be_a_loss(synthetic: SimpleNamespace, plain: Experiment, piped: Experiment) -> None:
    """Their early heads cost 0.1, 0.1 and 2 ms: Student's interval of what is saved, or slower, reaches below 0."""
    heads = {"a": 1e-4, "b": 1e-4, "c": 2e-3}
    names = [f"{name}{number}" for name in heads for number in range(10)]
    baseline = [replace(synthetic.plain(plain, name, TOKENS, PLAIN_S), signature=name[0]) for name in names]
    records = [
        replace(
            synthetic.piped(piped, name, TOKENS, (True, True, False), DEPTH, EARLY, early_head_s=heads[name[0]]),
            signature=name[0],
        )
        for name in names
    ]
    estimates = account([baseline], records, DEPTH).estimates  # type: ignore[union-attr]
    low = {name: estimates[name].low for name in ("saved_frac", "attainable_frac", "early_head_ms")}
    assert all(one is not None for one in low.values())
    assert (low["saved_frac"] < 0, low["attainable_frac"] < 0, low["early_head_ms"]) == (True, True, 0.0)
