"""What the audit covers, and the look-up of its verdicts: red ones take a table's speed-ups away."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.core.records import Record
from harness.core.settings import Settings
from harness.exact.checks import passed_by
from harness.exact.document import as_markdown, summarise
from harness.exact.fit import evenness
from harness.exact.ground import ModelGround
from harness.exact.run import control_part, split
from harness.exact.subjects import SIZES, Subject, own_subjects, zoo_subjects
from harness.measures import verdicts
from harness.measures.statistics import Estimate
from harness.measures.verdicts import NOT_TESTED, Verdict, audit_folder, key_of, verdict_of
from harness.models.fit import Models
from harness.papers import TABLES
from harness.papers.ppd.pipeline import _pipeline_columns
from harness.run.refusals import THEIRS
from harness.tables.base import TIME_SHARE, cell_of
from harness.tables.evidence import Evidence, stored_evidence
from harness.zoo.build import ensure
from kernels.verify.registry import EXACT, KERNELS
from methods.models.checkpoint import KEPT_TOKENS
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES
from methods.ppd.options import EXECUTIONS
from methods.sampling import Sampling
from methods.specdec.options import ENCODERS

TESTS = {"position 0": {"samples": 900, "p": 0.5, "tv_at_power_0.9": 0.1}}
SAMPLED = {"declared": "exact", "failed": [], "largest_deviation": {"draft 0": 1e-11}, "tests": TESTS}
GREEDY = {"declared": "exact", "prompts": 4, "tokens": 60, "near_ties": 0, "bugs": 0, "largest_margin": None}


@pytest.fixture(scope="module")
def subjects() -> list[Subject]:
    return zoo_subjects("toy", "toy", SIZES["toy"])


def test_every_registered_part_is_audited(subjects: list[Subject]) -> None:
    """A new method, rule, kernel, drafter, schedule, encoder or execution must find its place in the audit."""
    methods = [subject.method for subject in subjects]
    drafters = [method.drafter for method in methods if method.drafter is not None]
    assert {method.name for method in methods} == set(METHODS)
    assert {method.values.get("rule") for method in methods if method.name == "speculative"} == set(RULES)
    assert set(KERNELS) <= {method.values.get("rule") for method in methods}
    assert {drafter.kind for drafter in drafters} == set(DRAFTERS) | set(THEIRS)
    assert {drafter.options.encoder for drafter in drafters if drafter.kind == "block"} == set(ENCODERS)
    assert {method.schedule.name for method in methods if method.schedule is not None} == set(SCHEDULES)
    assert {method.values.get("execution") for method in methods if method.name == "ppd"} == set(EXECUTIONS)
    assert {subject.session for subject in subjects} == {"decoder-only", "encoder-decoder", "hears"}


def test_all_that_transformers_drafts_with_is_audited_greedy_and_sampled(subjects: list[Subject]) -> None:
    theirs = [subject for subject in subjects if subject.method.name == "transformers" and subject.method.drafter is not None]
    for kind in ("model", *THEIRS):
        samplings = {one.plain.sampling.greedy for one in theirs if one.method.drafter and one.method.drafter.kind == kind}
        assert samplings == {True, False}, kind
    assert {subject.session for subject in theirs} == {"decoder-only", "encoder-decoder", "hears"}


def test_every_pair_is_decoded_alone_and_in_batches_and_has_a_name_of_its_own(subjects: list[Subject]) -> None:
    assert len({subject.name for subject in subjects}) == len(subjects)
    for pair in {subject.pair for subject in subjects} - {"PPD's Llama"}:
        assert {subject.plain.batch_size for subject in subjects if subject.pair == pair} == {1, 4}
        assert {subject.plain.sampling.greedy for subject in subjects if subject.pair == pair} == {True, False}


def test_a_users_pair_needs_no_training(shared: Path) -> None:
    folders = [str(shared / "models" / name) for name in ("stories260K", "llama2xs-tok512")]
    found = own_subjects(*folders, "text", "toy", SIZES["own"])
    drafters = [subject.method.drafter for subject in found if subject.method.drafter is not None]
    assert {drafter.kind for drafter in drafters} == {"model", "hierarchical", "copy", "suffix", "random", "prompt-lookup"}
    assert {subject.method.values.get("rule") for subject in found} >= set(KERNELS)
    assert "ppd" in {subject.method.name for subject in found}
    rounded = [("", "int8:", True), ("bf16:", "int8:", True), ("int8:", "int8:", False), ("int8:", "bf16:", False)]
    for target, draft, audited in rounded:  # of one model
        found = own_subjects(target + folders[0], draft + folders[0], "text", "toy", SIZES["own"])
        drafters = [subject.method.drafter for subject in found if subject.method.drafter is not None]
        assert ("rounded" in {drafter.kind for drafter in drafters}) is audited


def test_transformers_is_not_asked_to_draft_with_a_part_of_the_vocabulary(zoo_cache: Path, tmp_path: Path) -> None:
    """The audit of SmolLM2 with its distilled draft ended there: such a draft's tokens are not numbered as the target's."""
    target, draft = ensure(("gpt-target", "gpt-draft"), "test", "toy", workers=0).values()
    shutil.copytree(draft, tmp_path / "draft")
    config = json.loads((draft / "config.json").read_text(encoding="utf8"))
    (tmp_path / "draft" / "config.json").write_text(json.dumps({**config, KEPT_TOKENS: [1, 2, 3]}), encoding="utf8")
    for folder, lent in ((draft, True), (tmp_path / "draft", False)):
        found = own_subjects(str(target), str(folder), "text", "toy", SIZES["own"])
        theirs = [one.method.drafter.kind for one in found if one.method.name == "transformers" and one.method.drafter]
        assert theirs == ["model", "prompt-lookup"][not lent :]


def speculative(temperature: float = 0.0, target: str = "zoo:t5-xxl", **fields: object) -> Experiment:
    drafter = DrafterSpec(kind="model", model=ModelSpec(name="zoo:t5-small"))
    method = MethodSpec.of("speculative", drafter=drafter, **fields)  # type: ignore[arg-type]
    return Experiment(
        task="wmt-en-de", target=ModelSpec(name=target), method=method, sampling=Sampling(temperature=temperature), limit=1
    )


def store(folder: Path, name: str, *rows: tuple[Experiment, dict]) -> None:
    stored = [
        {"name": f"subject {number}", "target": experiment.target.name, "key": list(key_of(experiment)), **finding}
        for number, (experiment, finding) in enumerate(rows)
    ]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"subjects": stored}), encoding="utf8")


def nothing(experiment: Experiment) -> list[Record]:
    return []


def audited(folder: Path) -> Evidence:
    return Evidence(nothing, partial(verdict_of, folder=folder), audits="results/audit")


def test_a_verdict_is_that_of_what_ran(tmp_path: Path) -> None:
    """Sizes and gamma may differ; family, device, dtype, rule, drafter, rounding and whether tokens are drawn may not.

    At temperature 0 the exact kernels' rules are speculative sampling.
    """
    store(tmp_path, "zoo-toy", (speculative(target="zoo:t5-base"), {**GREEDY, "verdict": "identical"}))
    verdict = verdict_of(speculative(gamma=7), tmp_path)
    summary = "4 prompts, 60 tokens, 0 near-ties, 0 bugs"
    assert verdict == Verdict("identical", "subject 0", summary, False, ("subject 0",), ("zoo-toy",))
    assert verdict_of(speculative(rule="fused"), tmp_path) == verdict
    for other in (
        speculative(temperature=1.0),
        speculative(rule="top-1"),
        speculative(target="int8:zoo:t5-base"),
        speculative(target="zoo:gpt-target"),
        speculative(target="meta-llama/Llama-2-13b-hf"),
        speculative().replace(device="cuda:0"),
        speculative().replace(dtype="float16"),
    ):
        assert verdict_of(other, tmp_path) is None
    assert verdict_of(speculative(), tmp_path / "nothing") is None


def test_a_verdict_beside_counts_that_deny_it_is_refused(tmp_path: Path) -> None:
    """Fault: "identical (4 prompts, 0 near-ties, 5 bugs)" stood in a table."""
    store(tmp_path, "zoo-toy", (speculative(), {**GREEDY, "verdict": "identical", "bugs": 5}))
    with pytest.raises(UsageError, match="subject 0: identical, with 5 bugs and 0 near-ties"):
        verdict_of(speculative(), tmp_path)


def test_what_was_not_audited_says_where(tmp_path: Path) -> None:
    store(tmp_path, "zoo-toy", (speculative(), {**GREEDY, "verdict": "identical"}))
    there = speculative(target="meta-llama/Llama-2-13b-hf").replace(device="cuda:1", dtype="float16")
    (note,) = audited(tmp_path).verdict_notes([there])
    assert "greedy: not audited for meta-llama/Llama-2-13b-hf on cuda / float16" in note


def test_every_arm_of_a_toy_table_is_audited_in_its_family(subjects: list[Subject]) -> None:
    known = {key_of(subject.experiment) for subject in subjects}
    arms = [arm for table in TABLES.values() for comparison in table.plan(Settings()) for arm in comparison.arms]
    keys = {key_of(arm): arm for arm in arms if arm.method.name not in ("autoregressive", "beam")}
    assert len(keys) > 20
    assert keys.keys() <= known


def test_a_test_without_power_is_no_pass(tmp_path: Path) -> None:
    """It bars no speed where the replay held, and does where nothing looked; that is no fault, and not red."""
    weak = {"position 0": {"samples": 90, "p": 1.0, "tv_at_power_0.9": 0.4}, "bonus": {"samples": 0}}
    row = {"declared": "exact", "verdict": NOT_TESTED, "failed": [], "largest_deviation": {}, "tests": weak}
    assert not verdicts.is_red(row)
    store(tmp_path, "zoo-toy", (speculative(1.0), row))
    verdict = verdict_of(speculative(1.0), tmp_path)
    assert verdict is not None
    assert (verdict.kind, verdict.is_red, verdict.bars_speed) == (NOT_TESTED, False, True)
    assert "has not tested its law, 0 of 2 places tested" in str(audited(tmp_path).reason_against_speed([speculative(1.0)]))
    store(tmp_path, "zoo-toy", (speculative(1.0), {**row, "replayed": {"decisions": 500, "longest": 140}}))
    assert audited(tmp_path).reason_against_speed([speculative(1.0)]) is None
    assert verdicts.summary_of(row) == "0 of 2 places tested"
    assert verdicts.summary_of({**row, "tests": TESTS | {"draft 1": weak["position 0"], "bonus": weak["bonus"]}}) == (
        "1 of 3 places tested; each test of samples finds tv 0.10, smallest p 0.5"
    )


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        ({}, NOT_TESTED),
        ({"tests": {"position 0": {"samples": 900, "p": 1.0, "tv_at_power_0.9": 0.19}}}, "same distribution"),
        ({"largest_deviation": {"draft 0": 1e-11}}, "same distribution"),
        ({"replayed": {"decisions": 11, "longest": 3}}, "same distribution"),
        ({"replayed": {"decisions": 10, "longest": 3}}, NOT_TESTED),
        ({"tests_made": 60}, "same distribution"),  # recorded of several series, of which it holds one
    ],
)
def test_ranks_alone_do_not_show_a_law(evidence: dict, verdict: str) -> None:
    """They see nothing that is moved within an eighth: an older document's verdict is read as what it shows."""
    fine = {"samples": 4000, "p": 1.0, "tv_at_power_0.9": 0.05}
    row = {"declared": "exact", "verdict": "same distribution", "failed": [], "largest_deviation": {}}
    row |= {"tests": {"ranks at all positions": fine, "numbers at 0, 1": fine, "position 0": {**fine, "tv_at_power_0.9": 0.3}}}
    assert verdicts.as_earned({**row, **evidence})["verdict"] == verdict
    if not evidence:
        assert verdicts.summary_of(row).startswith("2 of 3 places tested, none of which sees what is moved within an eighth")


def test_mass_that_moves_within_an_eighth_is_no_bias_and_no_proof() -> None:
    """A total variation of 1/2 within every eighth of the law leaves all ranks even; the verdict must not be "same"."""
    generator = torch.Generator().manual_seed(0)
    numbers = (torch.arange(8000) % 8 + torch.rand(8000, generator=generator, dtype=torch.float64) / 2) / 8
    fits = {"ranks at all positions": evenness(numbers, 1e-6)}
    assert fits["ranks at all positions"].passes(1e-6)
    assert fits["ranks at all positions"].likely_tv < 0.2
    assert passed_by(fits) == NOT_TESTED


def test_what_is_exact_at_few_places_alone_is_counted_apart() -> None:
    """A replay that held looks at every place; the committed audit has three subjects whose ranks alone were looked at."""
    weak = {f"draft {place}": {"samples": 0} for place in range(2)}
    row = {**SAMPLED, "largest_deviation": {}, "verdict": "same distribution", "tests": TESTS | weak}
    replayed = {**row, "replayed": {"decisions": 500, "longest": 140}}
    document = {"passed": True, "subjects": [row, replayed, {**row, "tests": TESTS}], "controls": []}
    apart = "1 same distribution where tested, at fewer than half of the places and not replayed"
    assert summarise(document) == f"passed: 3 subjects (2 same distribution, {apart}); 0 of 0 controls caught"
    kept = json.loads((verdicts.FOLDER / "zoo-toy.json").read_text(encoding="utf8"))
    assert "same distribution, 3 not tested); 20 of 20 controls" in summarise(kept)
    assert as_markdown(kept).count("- not tested: Llama: transformers / ") == 3
    blind = "none of which sees what is moved within an eighth of the law"
    assert f"| 1 of 22 places tested, {blind}; each test of samples finds tv 0.11, smallest p 1" in as_markdown(kept)


def test_the_worst_subject_counts(tmp_path: Path) -> None:
    wrong = {**SAMPLED, "verdict": "biased", "failed": ["samples of bonus"]}
    rows = [(speculative(1.0), {**SAMPLED, "verdict": "same distribution"}), (speculative(1.0), wrong)]
    store(tmp_path, "zoo-toy", *rows)
    verdict = verdict_of(speculative(1.0), tmp_path)
    assert verdict is not None
    assert (verdict.kind, verdict.is_red, len(verdict.subjects)) == ("biased", True, 2)
    assert "failed: samples of bonus" in verdict.evidence


def test_an_audit_of_ones_own_models_counts_for_these_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "FOLDER", tmp_path / "no audit of the repository")
    mine = speculative(target="my/model")
    store(tmp_path, "model", (mine, {**GREEDY, "verdict": "bug", "bugs": 2}))
    store(tmp_path, "zoo-test", (speculative(), {**GREEDY, "verdict": "bug", "bugs": 1}))
    verdict = verdict_of(mine, tmp_path)
    assert verdict is not None
    assert verdict.is_red
    assert verdict_of(speculative(), tmp_path) is None


def test_the_exact_kernels_are_named_alike() -> None:
    assert verdicts.EXACT_KERNELS == EXACT


def test_an_exact_method_that_is_called_lossy_is_red() -> None:
    distance = {"value": 0.1, "low": 0.0, "high": 0.2, "n": 4}
    assert verdicts.is_red({"declared": "exact", "verdict": "lossy", "tv": distance, "nats": distance})
    assert not verdicts.is_red({"declared": "lossy", "verdict": "lossy", "tv": distance, "nats": distance})
    for verdict in ("bug", "biased", "failed", "unknown"):
        assert verdicts.is_red({"declared": "exact", "verdict": verdict})


def test_a_red_audit_takes_the_speed_up_away_and_nothing_else(tmp_path: Path) -> None:
    records = [Record(signature="s", example="e", repeat=0, status="ok", tokens=[1], wall_s=1.0)]
    evidence = Evidence(lambda arm: records, partial(verdict_of, folder=tmp_path))
    speed, alpha = lambda: Estimate(2.0, 1.9, 2.1, 8, "x"), lambda: Estimate(0.7, 0.6, 0.8, 8)
    assert cell_of(evidence, "r", "speed", None, [speculative()], speed).measured == 2.0
    store(tmp_path, "zoo-toy", (speculative(), {**GREEDY, "verdict": "bug", "bugs": 2}))
    refused = cell_of(evidence, "r", "speed", None, [speculative()], speed)
    assert (refused.measured, refused.status) == (None, "refused")
    assert "audit of speculative / model / speculative-sampling is red: bug" in refused.note
    assert cell_of(evidence, "r", "alpha", None, [speculative()], alpha).measured == 0.7
    saved = cell_of(evidence, "r", "saved", None, [speculative()], lambda: Estimate(40.0, 30.0, 50.0, 8, "%"), TIME_SHARE)
    assert (saved.measured, saved.status) == (None, "refused")
    assert {column.unit for column in _pipeline_columns((), 8) if column.title in ("saved", "reached")} == {TIME_SHARE}


def test_a_red_audit_counts_wherever_the_command_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit folder follows from the records' folder, never from the current one."""
    audits = tmp_path / "project" / "results" / "audit"
    audits.mkdir(parents=True)
    (audits.parent / "records").mkdir()
    store(audits, "zoo-toy", (speculative(), {**GREEDY, "verdict": "bug", "bugs": 2}))
    for current in (tmp_path, tmp_path / "project"):
        monkeypatch.chdir(current)
        evidence = stored_evidence(Path(os.path.relpath(audits.parent / "records")))
        assert evidence.audits == "results/audit"
        assert "is red: bug" in str(evidence.reason_against_speed([speculative()]))
    monkeypatch.chdir(tmp_path)
    assert audit_folder(tmp_path / "elsewhere" / "records") == verdicts.FOLDER


def test_an_audit_of_ones_own_does_not_hide_the_red_one_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "repository", tmp_path / "project" / "audit"
    ours.mkdir()
    theirs.mkdir(parents=True)
    monkeypatch.setattr(verdicts, "FOLDER", ours)
    store(ours, "zoo-toy", (speculative(), {**GREEDY, "verdict": "bug", "bugs": 2}))
    store(theirs, "their-model", (speculative(), {**GREEDY, "verdict": "identical"}))
    found = verdict_of(speculative(), theirs)
    assert found is not None
    assert found.is_red
    store(theirs, "zoo-toy", (speculative(), {**GREEDY, "verdict": "identical"}))
    assert verdict_of(speculative(), theirs).kind == "identical"  # type: ignore[union-attr]


def test_a_note_names_every_audit_that_it_quotes(tmp_path: Path) -> None:
    """So that a committed table that quotes an audit of one's own says why it differs."""
    (tmp_path / "records").mkdir()
    (tmp_path / "audit").mkdir()
    store(tmp_path / "audit", "zoo-toy", (speculative(), {**GREEDY, "verdict": "identical"}))
    [note] = stored_evidence(tmp_path / "records").verdict_notes([speculative()])
    assert "/audit: zoo-toy): speculative" in note
    store(tmp_path / "audit", "my-pair", (speculative(), {**GREEDY, "verdict": "near-tie"}))
    store(tmp_path / "audit", "others", (speculative(1.0), {**GREEDY, "verdict": "identical"}))
    [note] = stored_evidence(tmp_path / "records").verdict_notes([speculative()])
    assert "/audit: my-pair, zoo-toy): speculative" in note
    assert "near-tie" in note


def test_a_table_names_the_verdict_of_each_of_its_methods(tmp_path: Path) -> None:
    plain = speculative().replace(method=MethodSpec(name="autoregressive"))
    assert Evidence(nothing).verdict_notes([plain, speculative()]) == []
    store(tmp_path, "zoo-toy", (speculative(), {**GREEDY, "verdict": "identical"}))
    (note,) = audited(tmp_path).verdict_notes([plain, speculative(), speculative(gamma=7), speculative(1.0)])
    assert note.count("speculative / model") == 2
    assert "greedy: identical (4 prompts" in note
    assert "sampled: not audited" in note


def test_a_distance_stands_behind_the_name_of_what_was_audited(tmp_path: Path) -> None:
    """The verdict is that of every beta and tau, the distance of the audited ones alone."""
    distance = {"value": 0.1, "low": 0.0, "high": 0.2, "n": 4}
    relaxed = speculative(rule="top-beta", beta=3, tau=2.0)
    store(tmp_path, "zoo-toy", (relaxed, {"declared": "lossy", "verdict": "lossy", "tv": distance, "nats": distance}))
    (note,) = audited(tmp_path).verdict_notes([speculative(rule="top-beta", beta=5, tau=3.0)])
    assert "top-beta, greedy: lossy (audited as subject 0: total variation 0.100" in note
    assert "tau 3" not in note


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"subjects": 5}', '{"subjects": ["x"]}', '{"subjects": [{"verdict": "identical", "declared": "exact"}]}'],
)
def test_a_broken_audit_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "zoo-toy.json").write_text(content, encoding="utf8")
    with pytest.raises(UsageError, match=r"zoo-toy\.json: cannot be read"):
        verdict_of(speculative(), tmp_path)


def test_controls_need_a_pair_with_a_draft_model_and_a_shared_encoder_its_own_drafter() -> None:
    subjects = zoo_subjects("toy", "toy", SIZES["toy"])
    blocks = [one for one in subjects if one.pair == "SpecDec"]
    assert control_part(blocks) is None
    assert control_part(subjects) is not None
    sharing = {
        one.method.drafter.model.name for one in blocks if one.method.drafter and one.method.values.get("encoder") == "shared"
    }
    assert sharing == {"zoo:specdec-drafter-shared"}


def test_parts_write_no_record_of_one_another() -> None:
    """SpecDec's pairs have one verifier, and so one plain arm."""
    subjects = zoo_subjects("toy", "toy", SIZES["toy"])
    parts = list(split(subjects))
    written = [{arm.signature for one in part.subjects for arm in (one.plain, one.experiment)} for part in parts]
    assert sum(map(len, written)) == len(set().union(*written))
    assert sorted(one.name for part in parts for one in part.subjects) == sorted(one.name for one in subjects)
    assert len({part.file for part in parts}) == len(parts)
    assert "SpecDec, Heads, greedy" in {part.name for part in parts}


def test_controls_stand_on_plain_arms_whatever_was_chosen() -> None:
    subjects = zoo_subjects("toy", "toy", SIZES["toy"])
    chosen = [one for one in subjects if one.pair == "GPT" and (one.plain.batch_size > 1 or not one.plain.sampling.greedy)]
    stage = control_part(chosen)
    assert stage is not None
    assert (stage.ground.batch_size, stage.ground.method.name) == (1, "autoregressive")
    assert stage.drawn is not None
    assert (stage.ground.sampling.greedy, stage.drawn.sampling.greedy) == (True, False)
    assert control_part([one for one in chosen if not one.plain.sampling.greedy]) is None


def test_rounded_weights_are_whole_in_half_precision() -> None:
    """Fault: the audit of a pair with an int8 model was refused in the middle, by its control in half precision."""
    ground = ModelGround(speculative(target="int8:org/model"), SIZES["own"], Models())
    half = ground.in_dtype("bfloat16")
    assert (half.plain.target.name, half.plain.dtype, half.models.dtype) == ("org/model", "bfloat16", "bfloat16")
    assert ground.in_dtype("float32") is ground
