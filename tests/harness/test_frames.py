"""Frames hold what the records hold: against sums made by hand, the estimators of the measures, and files cut anywhere."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, EarlyProbe, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.core.record_files import RecordFile
from harness.measures.frames import ROWS, load, settings_of
from harness.measures.of_run import accepted_over_verified, alpha_overlap, tokens_per_step
from harness.measures.pipelines import match_rate
from methods.sampling import Sampling


@pytest.fixture
def arms(synthetic: SimpleNamespace, tmp_path: Path) -> SimpleNamespace:
    """A plain arm with overlap and early ranks, and a drafting one, four examples twice each, one of them a failure."""
    early = (EarlyProbe(layers=(4, 6)), EarlyProbe(layers=(4, 6), heads=ModelSpec(name="zoo:heads")))
    overlap = OverlapProbe(drafter=DrafterSpec(kind="model", model=ModelSpec(name="zoo:t5-small")), leniences=(1.0, 0.5))
    plain = synthetic.plain_experiment(limit=4, repeats=2, probes=(overlap, *early))
    drafted = synthetic.drafted_experiment(plain, gamma=4).replace(probes=())
    made = [  # rounds of 3, 5 and 1 tokens, none of them cut
        synthetic.drafted(drafted, f"e{number}", 9 * (number + 1), (2, 4, 0), repeat=repeat)
        for repeat in range(2)
        for number in range(4)
    ]
    records = {plain: synthetic.run(plain), drafted: [*made[:-1], synthetic.failed(drafted, "e3", repeat=1)]}
    for experiment, made in records.items():
        synthetic.write(tmp_path, experiment, made)
    return SimpleNamespace(folder=tmp_path, plain=plain, drafted=drafted, records=records)


def test_one_row_a_generation_with_the_settings_beside_it(arms: SimpleNamespace) -> None:
    frame = load(arms.folder)
    assert len(frame) == sum(map(len, arms.records.values())) == 16
    assert not frame.duplicated(["signature", "example", "repeat"]).any()
    drafted = frame[frame.method == "speculative"]
    assert set(drafted.signature) == {arms.drafted.signature}
    assert (drafted.gamma == 4).all()
    assert (drafted.drafter == "t5-small").all()
    assert (drafted.drafter_kind == "model").all()
    assert (frame.target == "zoo:t5-xxl").all()
    ok = drafted[drafted.status == "ok"]
    rounds = tokens_per_step(arms.records[arms.drafted])
    assert ok.num_tokens.sum() / ok.num_rounds.sum() == pytest.approx(rounds.value)
    failed = drafted[drafted.status == "failed"]
    assert list(failed.error) == ["RuntimeError: broken"]
    assert failed[["num_tokens", "num_rounds", "num_accepted", "wall_s"]].isna().all(axis=None)


def test_one_row_a_round(arms: SimpleNamespace) -> None:
    steps = load(arms.folder, rows="steps", method="speculative")
    records = [record for record in arms.records[arms.drafted] if record.status == "ok"]
    assert len(steps) == sum(len(record.steps.drafted) for record in records)
    assert steps.num_accepted.sum() == sum(sum(record.steps.num_accepted) for record in records)
    assert steps.round_s.sum() == pytest.approx(sum(sum(record.steps.round_s) for record in records))
    for (_, _), text in steps.groupby(["example", "repeat"]):
        assert list(text["round"]) == list(range(len(text)))
        assert list(text.position) == [0, *text.emitted.cumsum()[:-1]]


def test_one_row_a_draft(arms: SimpleNamespace) -> None:
    drafts = load(arms.folder, rows="drafts", method="speculative")
    steps = load(arms.folder, rows="steps", method="speculative")
    assert len(drafts) == steps.num_drafted.sum()
    assert drafts.accepted.sum() == steps.num_accepted.sum()
    assert not (drafts.accepted & ~drafts.verified).any()
    share = drafts[drafts.verified].accepted.mean()
    assert share == pytest.approx(accepted_over_verified(arms.records[arms.drafted]).value)
    assert set(drafts[drafts.accepted].target_prob) == {0.5}


def test_alpha_and_match_rates_are_means_of_rows(arms: SimpleNamespace) -> None:
    overlap = load(arms.folder, rows="overlap")
    records = arms.records[arms.plain]
    for lenience, rows in overlap.groupby("overlap_lenience"):
        assert rows.overlap_frac.mean() == pytest.approx(alpha_overlap(records, "t5-small", lenience).value)
    assert set(overlap.overlap_lenience) == {1.0, 0.5}
    early = load(arms.folder, rows="early")
    seen = 0
    for (head, layer), rows in early.groupby(["head", "layer"]):
        assert 100 * (rows["rank"] < 3).mean() == pytest.approx(match_rate(records, head, layer, 3).value)
        seen += 1
    assert seen == 4


def test_rounds_of_the_pipeline_have_their_parts(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    plain = synthetic.plain_experiment(probes=(), limit=1)
    piped = plain.replace(method=MethodSpec.of("ppd", early_layer=5, candidates=1))
    record = synthetic.piped(piped, "e0", hits=(True, False), adopt_s=0.25)
    synthetic.write(tmp_path, piped, [record])
    steps = load(tmp_path, rows="steps")
    assert (steps.layer == 5).all()
    assert steps.matched.sum() == sum(bool(hit) for hit in record.steps.matched)
    assert (steps.adopt_s == steps.matched.map({True: 0.25}).fillna(0.0)).all()
    parts = ["early_layers_s", "early_head_s", "post_s", "late_layers_s", "head_s", "wait_s", "adopt_s"]
    assert steps[parts].sum(axis=1).tolist() == pytest.approx(record.steps.round_s)


def test_settings_pick_experiments(arms: SimpleNamespace, synthetic: SimpleNamespace) -> None:
    other = arms.plain.replace(task="cnndm", sampling=Sampling(temperature=1.0, top_k=40))
    path = synthetic.write(arms.folder, other, synthetic.run(other))
    assert set(load(arms.folder, task="cnndm").signature) == {other.signature}
    assert set(load(arms.folder, signature=[arms.plain.signature, other.signature]).method) == {"autoregressive"}
    assert set(load(arms.folder, drafter=None).signature) == {arms.plain.signature, other.signature}
    assert set(load(path).signature) == {other.signature}
    assert load(path, arms.folder).shape == load(arms.folder).shape
    assert load(arms.folder, temperature=1.0, top_k=40, task="cnndm").temperature.eq(1.0).all()


@pytest.mark.parametrize("rows", ROWS)
def test_nothing_picked_is_an_empty_frame_with_its_columns(arms: SimpleNamespace, rows: str) -> None:
    empty = load(arms.folder, rows=rows, task="squad")
    assert empty.empty
    assert {"signature", "example", "repeat", "task", "gamma", "temperature", *ROWS[rows][0]} <= set(empty)
    assert list(empty) == list(load(arms.folder, rows=rows))


def test_bad_questions_are_refused(arms: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match="rows 'rounds': expected one of examples, steps"):
        load(arms.folder, rows="rounds")
    with pytest.raises(UsageError, match="setting 'gama': no experiment has it"):
        load(arms.folder, gama=3)
    with pytest.raises(UsageError, match="not there"):
        load(arms.folder / "nowhere")
    (arms.folder / f"{arms.plain.signature}.json").unlink()
    with pytest.raises(UsageError, match="written beside its records"):
        load(arms.folder)


def test_every_setting_has_a_column_of_its_own() -> None:
    """No field hides another, and two experiments that differ in one differ in the row of settings."""
    inner = DrafterSpec(kind="model", model=ModelSpec(name="c"))
    drafter = DrafterSpec(kind="hierarchical", model=ModelSpec(name="a/b", revision="r"), inner=inner)
    method = MethodSpec.of("speculative", drafter=drafter, rule="sigmoid")
    experiment = Experiment(task="text", target=ModelSpec(name="m"), method=method)
    row = settings_of(experiment)
    assert (row["drafter"], row["drafter_model_revision"], row["drafter_inner_model"], row["gamma"]) == ("b", "r", "c", 5)
    untrained = replace(inner, model=ModelSpec(name="c", untrained=True))
    changed = {
        "seed": experiment.replace(seed=1),
        "top_p": experiment.replace(sampling=Sampling(top_p=0.5)),
        "target_revision": experiment.replace(target=ModelSpec(name="m", revision="x")),
        "scale": experiment.replace(method=method.change(scale=2.0)),
        "drafter_inner_model_untrained": experiment.replace(method=replace(method, drafter=replace(drafter, inner=untrained))),
    }
    for name, other in changed.items():
        theirs = settings_of(other)
        assert theirs[name] != row[name]
        assert set(theirs) == set(row)
    clash = {name for columns, _ in ROWS.values() for name in columns} & set(row)
    assert not clash


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_cut_anywhere_loses_at_most_its_torn_line(
    synthetic: SimpleNamespace, tmp_path: Path, data: st.DataObject
) -> None:
    experiment = synthetic.plain_experiment(limit=2)
    file = RecordFile(tmp_path, experiment)
    file.open().close()
    records = [synthetic.plain(experiment, name, ar_s=seconds) for name, seconds in (("a", 1.0), ("a", 9.0), ("b", 2.0))]
    whole = b"".join(record.to_line().encode() for record in records)
    cut = data.draw(st.integers(0, len(whole)))
    file.path.write_bytes(whole[:cut])
    names = ["a", "a", "b"][: whole[:cut].count(b"\n")]
    frame = load(tmp_path)
    assert list(frame.example) == list(dict.fromkeys(names))  # the first of a key counts
    assert 108.0 not in list(frame.wall_s)
