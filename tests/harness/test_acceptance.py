"""One raw log, every definition: against counts made by hand, and the identities that hold between them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from probed import write_records

from harness.cli.main import main
from harness.cli.records import _in_words
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.core.records import Overlap, Record
from harness.measures.definitions import DEFINITIONS, definitions_of
from harness.measures.logs import Log
from harness.measures.verdicts import label_of
from methods.sampling import Sampling
from methods.speculative.acceptance import alpha_ratio, expected_blocks, expected_token_wise
from methods.steps import Steps

PLAIN = Experiment(
    task="text",
    target=ModelSpec(name="zoo:gpt-target"),
    method=MethodSpec(name="autoregressive"),
    probes=(OverlapProbe(drafter=DrafterSpec(kind="copy")),),
    limit=3,
)
DRAFTED = PLAIN.replace(
    method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=3), probes=(), num_threads=1
)

# (drafted, accepted, emitted) a round. Example a: 2 of 3 stand and one is the target's; none of 3; a plain step.
# Example b: all 3 and the bonus; then an EOS is the second of 3 drafts. Example c: all of 2 drafts, the last an EOS.
ROUNDS = {
    "a": ([(3, 2, 3), (3, 0, 1), (0, 0, 1)], "length"),
    "b": ([(3, 3, 4), (3, 2, 2)], "eos"),
    "c": ([(2, 2, 2)], "eos"),
}
BY_HAND = {
    "alpha_overlap": (0.5 + 0.7 + 0.9) / 3,
    "alpha_ratio": (3 * 0.5 + 1 * 0.5 + 3 * 0.5 + 2 * 0.5 + 2 * 0.5) / (3 + 1 + 3 + 2 + 2),
    "alpha_point_mass": 0.25,
    "accepted_over_verified": 9 / (3 + 1 + 3 + 2 + 2),
    "accepted_over_drafted": 9 / (3 + 3 + 0 + 3 + 2 + 2),
    "accepted_over_drafted_mean": (2 / 6 + 5 / 5 + 2 / 2) / 3,
    "vllm_draft_acceptance_rate": 9 / (3 + 3 + 3 + 3 + 2),
    "sglang_accept_rate": 9 / (6 * 3),
    "accepted_per_step": 9 / 6,
    "transformers_n_matches": (9 - 2) / 6,  # two rounds end on an EOS among their drafts
    "expected_token_wise": (4 * (0.5 + 0.25 + 0.125) + (0.5 + 0.25)) / 6,
    "expected_blocks": (4 * (0.5 + 0.25 + 0.125) + (0.5 + 0.25)) / 6,  # no draft is likelier under the target
    "tokens_per_step": (3 + 1 + 1 + 4 + 2 + 2) / 6,
    "tokens_per_step_mean": (5 / 3 + 6 / 2 + 2 / 1) / 3,
    "eagle_tau": 13 / 6,
    "vllm_mean_acceptance_length": 1 + 9 / 5,
    "sglang_accept_length": 1 + 9 / 6,
    "spec_bench_mean_accepted_tokens": 1 + 9 / 6,
    "position 1, joint": 4 / 5,
    "position 2, joint": 4 / 5,
    "position 3, joint": 1 / 5,
    "position 1, conditional": 4 / 5,
    "position 2, conditional": 4 / 4,
    "position 3, conditional": 1 / 2,  # behind an EOS nothing was decided
}


def drafted_record(example: str) -> Record:
    rounds, reason = ROUNDS[example]
    probs = [[0.25] * drafted for drafted, _, _ in rounds]
    steps = Steps(
        drafted=[list(range(drafted)) for drafted, _, _ in rounds],
        num_accepted=[accepted for _, accepted, _ in rounds],
        emitted=[emitted for _, _, emitted in rounds],
        target_probs=probs,
        draft_probs=[[0.5] * len(row) for row in probs],
    )
    tokens = list(range(sum(steps.emitted)))
    return Record(
        signature=DRAFTED.signature, example=example, repeat=0, status="ok", tokens=tokens, stop_reason=reason, steps=steps
    )


def failed_record(experiment: Experiment) -> Record:
    return Record(signature=experiment.signature, example="d", repeat=0, status="failed", error="it broke")


def plain_records() -> list[Record]:
    values = {"a": [0.5], "b": [0.7], "c": [0.9]}
    overlaps = {name: [Overlap(drafter="copy", by_lenience={"1.0": row})] for name, row in values.items()}
    return [
        Record(signature=PLAIN.signature, example=name, repeat=0, status="ok", tokens=[1], overlap=overlap)
        for name, overlap in overlaps.items()
    ]


@pytest.fixture
def log() -> Log:
    return Log(DRAFTED, [drafted_record(name) for name in ROUNDS] + [failed_record(DRAFTED)], plain_records())


def values(log: Log) -> dict[str, float]:
    found = {one.name: one.measure(log) for one in definitions_of([log])}
    return {name: estimate.value for name, estimate in found.items() if estimate is not None}


def test_every_definition_by_hand(log: Log) -> None:
    found = values(log)
    assert set(found) == set(BY_HAND) | {"alpha_eq1"}
    for name, value in BY_HAND.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
    alpha = found["alpha_eq1"]
    assert 1 + alpha + alpha**2 + alpha**3 == pytest.approx(found["tokens_per_step"], abs=1e-9)


def test_intervals_resample_examples_and_hold_the_value(log: Log) -> None:
    constant = []
    for one in definitions_of([log]):
        estimate = one.measure(log)
        assert estimate is not None
        assert estimate.n == 3, one.name
        if estimate.low is None:  # the same in every example
            constant.append(one.name)
        else:
            assert estimate.low <= estimate.value <= estimate.high, one.name
    assert len(constant) < len(DEFINITIONS) / 2
    alone = Log(DRAFTED, [drafted_record("b")])
    assert all(found.low is None for one in definitions_of([alone]) if (found := one.measure(alone)) is not None)


def test_identities_between_definitions(log: Log) -> None:
    found = values(log)
    joint = sum(found[f"position {place}, joint"] for place in (1, 2, 3))
    assert found["vllm_mean_acceptance_length"] == pytest.approx(1 + joint)
    assert found["sglang_accept_length"] == pytest.approx(1 + found["accepted_per_step"])
    assert found["eagle_tau"] == found["tokens_per_step"] < found["sglang_accept_length"]  # two rounds ended on an EOS


def test_ratios_of_probabilities_that_underflow() -> None:
    """By hand: behind p = 1/4 a draft of probability 0, or 1e-310, makes p 1 again; the target's 0 ends it, also as 0 / 0.

    Faults: a ratio of 1 where the draft's probability is 0 leaves p at 1/4; 0 times an infinite ratio is no number.
    """
    rounds = [((0.25, 0.5), (1.0, 0.0)), ((0.25, 1.0), (1.0, 1e-310)), ((0.0, 0.5), (1.0, 1e-310)), ((0.0, 0.0), (0.0, 0.0))]
    steps = Steps(
        drafted=[[1, 2]] * 4, num_accepted=[0] * 4, emitted=[1] * 4,
        target_probs=[list(one) for one, _ in rounds], draft_probs=[list(one) for _, one in rounds],
    ).rounds("length")  # fmt: skip
    assert expected_blocks(steps[:1]) == (0.25 + 1.0, 1.0)
    assert expected_blocks(steps[1:2]) == (0.25 + 1.0, 1.0)
    assert expected_blocks(steps[2:]) == (0.0, 2.0)
    assert expected_token_wise(steps) == (0.25 + 0.25 + 0.25 + 0.25, 4.0)
    zero = Steps(drafted=[[1]], num_accepted=[0], emitted=[1], target_probs=[[0.0]], draft_probs=[[0.0]]).rounds("length")
    assert alpha_ratio(zero) == (0.0, 1.0)


def test_without_stops_the_definitions_agree(synthetic: SimpleNamespace) -> None:
    """Rounds that all draft gamma and are never cut: what differs is the bonus and the weighting of examples alone."""
    experiment = synthetic.drafted_experiment(synthetic.plain_experiment(), gamma=3)
    lengths = {"a": [3, 1, 0], "b": [2, 2], "c": [1, 3, 3, 0]}
    records = [synthetic.drafted(experiment, name, sum(n + 1 for n in row), row) for name, row in lengths.items()]
    found = values(Log(experiment, records))
    accepted = found["accepted_per_step"]
    assert accepted == pytest.approx(15 / 9)
    for name in ("tokens_per_step", "eagle_tau", "vllm_mean_acceptance_length", "sglang_accept_length"):
        assert found[name] == pytest.approx(accepted + 1), name
    for name in ("accepted_over_drafted", "vllm_draft_acceptance_rate", "sglang_accept_rate"):
        assert found[name] == pytest.approx(accepted / 3), name
    product = 1.0
    for place in (1, 2, 3):
        product *= found[f"position {place}, conditional"]
        assert found[f"position {place}, joint"] == pytest.approx(product)
    assert found["tokens_per_step_mean"] == pytest.approx((7 / 3 + 6 / 2 + 11 / 4) / 3)
    assert "alpha_overlap" not in found


def test_repeats_of_an_example_are_one_example(log: Log) -> None:
    again = [drafted_record(name) for name in ROUNDS]
    for record in again:
        record.repeat = 1
    twice = Log(DRAFTED, [*log.records, *again], log.plain)
    assert values(twice) == pytest.approx(values(log))
    assert all(found.n == 3 for one in definitions_of([twice]) if (found := one.measure(twice)) is not None)


def test_every_definition_says_whose_it_is() -> None:
    names = [one.name for one in DEFINITIONS]
    assert len(set(names)) == len(names) == 19
    assert all(one.meaning and one.source for one in DEFINITIONS)


def test_the_command_reads_the_plain_arm_beside_and_compares_files(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write_records(tmp_path, DRAFTED, list(log.records))
    write_records(tmp_path, PLAIN, list(log.plain))
    another = DRAFTED.replace(seed=1)
    elsewhere = write_records(tmp_path / "other", another, [replace(drafted_record("b"), signature=another.signature)])
    assert main(["acceptance", str(path), str(elsewhere), "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "4 records, 1 failed" in shown
    assert lines["alpha_overlap"].split()[1] == "0.700"  # of three examples without an interval
    assert "unknown (1)" in lines["alpha_overlap"]
    assert "Corollary 3.6" in lines["alpha_overlap"]
    assert "(1) no plain arm" in shown
    document = json.loads((tmp_path / "out.json").read_text())
    rows = {row["name"]: row for row in document["definitions"]}
    for name, value in BY_HAND.items():
        assert rows[name]["columns"][0]["value"] == pytest.approx(value), name
    assert rows["tokens_per_step"]["columns"][1] == {
        "status": "measured", "value": 3.0, "low": None, "high": None, "n": 1, "unit": "",
        "approximate": False,
    }  # fmt: skip
    assert [facts["num_failed"] for facts in document["records"]] == [1, 0]


def test_a_file_without_drafts_beside_others_is_left_out_and_named(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    plain, drafted = write_records(tmp_path, PLAIN, list(log.plain)), write_records(tmp_path, DRAFTED, list(log.records))
    assert main(["acceptance", str(plain), str(drafted), "--json", str(tmp_path / "out.json")]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"foretoken: records {plain}: no drafts in them; left out\n"
    assert f"[1] {drafted}: " in captured.out
    assert [one["file"] for one in json.loads((tmp_path / "out.json").read_text())["records"]] == [drafted.name]


def test_compare_says_in_words_what_differs(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plain, drafted = write_records(tmp_path, PLAIN, list(log.plain)), write_records(tmp_path, DRAFTED, list(log.records))
    assert main(["compare", str(plain), str(drafted)]) == 0
    shown = capsys.readouterr().out
    assert "  method: autoregressive | speculative / copy / speculative-sampling, gamma 3" in shown
    assert "Spec(" not in shown
    assert "Probe(" not in shown


def test_methods_that_differ_in_a_number_are_told_apart_by_it() -> None:
    method = DRAFTED.method
    first, second = _in_words([method, method.change(gamma=method.gamma + 1)])
    assert (first, second) == (f"{label_of(method)}, gamma {method.gamma}", f"{label_of(method)}, gamma {method.gamma + 1}")
    assert _in_words([ModelSpec(name="a"), ModelSpec(name="b")]) == ["a", "b"]
    assert _in_words([Sampling(temperature=1.0), Sampling(temperature=0.0)]) == ["temperature 1", "greedy"]
    assert _in_words([None, "{source} ="]) == ["none", "{source} ="]


def test_what_drafted_nothing_is_refused(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_records(tmp_path, PLAIN, list(log.plain))
    for given, expected in (
        (path, "nothing was drafted"),
        (tmp_path, "no record file"),
        (tmp_path / "no.jsonl", "no record file"),
    ):
        assert main(["acceptance", str(given)]) == 2
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1
