"""SpecDec's models at test scale: teacher, the corpus it writes, verifier and drafter, trained in order and resumable."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, ModelSpec, RuleSpec
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.models.names import is_encoder_decoder, pin_model
from harness.run.build import build_drafter, build_rule
from harness.zoo import build, distil, drafters, loop, text
from harness.zoo.build import ensure
from harness.zoo.cache import DONE, is_complete, make, seal
from harness.zoo.corpus import DATA, Encoded, read_corpus, read_tokenizer
from harness.zoo.descriptions import Corpus, Distilled, DrafterRecipe, PairRecipe, Recipe, distilled
from harness.zoo.drafters import accepted_by_verifier, count_accepted, greedy_outputs, next_block, start_from
from harness.zoo.loop import averaged_steps, course_of
from harness.zoo.networks import build_network, num_parameters, read_network
from harness.zoo.recipes import RECIPES, digest
from harness.zoo.state import averaged_weights, load_averaged, load_state, save_state
from harness.zoo.text import batches_for, next_token
from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.parts import SCHEDULES
from methods.sampling import Sampling, Uniforms
from methods.specdec.network import load_network
from methods.specdec.rules import TopOne
from methods.speculative.decode import DraftAndVerify
from methods.types import Inputs, Stop
from tasks.sources.read import read_examples

CPU = torch.device("cpu")
NAMES = ("specdec-teacher", "specdec-verifier", "specdec-drafter")
OBJECTIVES: dict[str, Callable[[Any, Encoded], loop.Objective]] = {"marian": next_token, "block": next_block}


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    """Asking for the drafter trains the others, in the order in which they need each other."""
    drafter = ensure(["specdec-drafter"], "test", "toy", workers=0)
    assert all(is_complete(folder_of(name)) for name in NAMES)
    return {name: folder_of(name) for name in NAMES} | drafter


def recipe_of(name: str) -> Any:
    return RECIPES["test"][name]


def folder_of(name: str) -> Path:
    return build.folder_of(recipe_of(name), "toy")


def facts_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "recipe.json").read_text())


def corpus_folder(name: str) -> Path:
    return build.folder_of(recipe_of(name).corpus, "toy")


def test_verifier_and_drafter_begin_when_their_corpus_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    missing = build.missing_of([recipe_of("specdec-drafter")], "toy")
    jobs = {folder: build.job_of(one, "toy", missing) for folder, one in missing.items()}
    needs = {job.name: sorted(jobs[folder].name for folder in job.needs) for job in jobs.values()}
    assert needs == {
        "zoo specdec": [],
        "zoo specdec-teacher": ["zoo specdec"],
        "zoo specdec-distilled": ["zoo specdec", "zoo specdec-teacher"],
        "zoo specdec-drafter": ["zoo specdec-distilled", "zoo specdec-teacher"],
        "zoo specdec-verifier": ["zoo specdec-distilled"],
    }


@pytest.mark.parametrize("scale", ["toy", "test"])
def test_everything_missing_comes_behind_what_it_needs(scale: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    recipes = list(RECIPES[scale].values())  # type: ignore[index]
    missing = build.missing_of(recipes, "toy")
    for folder, one in missing.items():
        behind = list(missing)[: list(missing).index(folder)]
        assert {build.folder_of(needed, "toy") for needed in build.dependencies(one)} <= set(behind), one.name
    assert len(missing) == len(recipes) + len({recipe.corpus for recipe in recipes}) + 2  # and two more teachers


def test_hash_covers_every_field() -> None:
    """Of the drafter, of the corpus it learns from and of the teacher who wrote that; also of the verifier it is judged by."""
    recipe: DrafterRecipe = recipe_of("specdec-drafter")
    corpus = recipe.corpus
    assert isinstance(corpus, Distilled)

    def with_corpus(**values: Any) -> DrafterRecipe:
        return dataclasses.replace(recipe, corpus=dataclasses.replace(corpus, **values))

    def with_teacher(**values: Any) -> DrafterRecipe:
        return with_corpus(teacher=dataclasses.replace(corpus.teacher, **values))

    def with_verifier(**values: Any) -> DrafterRecipe:
        return dataclasses.replace(recipe, verifier=dataclasses.replace(recipe.verifier, **values))

    found, count = {digest(recipe, "toy")}, 0
    for description, wrap in (
        (recipe, lambda **values: dataclasses.replace(recipe, **values)),
        (corpus, with_corpus),
        (corpus.teacher, with_teacher),
        (recipe.verifier, with_verifier),
    ):
        for field in dataclasses.fields(description):
            value = getattr(description, field.name)
            if isinstance(value, Recipe | Corpus) or field.name == "parts":
                continue
            if isinstance(value, tuple):
                other: Any = (value[0] + 1e-9, *value[1:])
            else:
                other = value + 1e-9 if isinstance(value, float) else value + 1 if isinstance(value, int) else f"{value}x"
            found.add(digest(wrap(**{field.name: other}), "toy"))
            count += 1
    assert count >= 100
    assert len(found) == count + 1
    for change in ({"glancing": None}, {"initial": None}, {"initial": recipe.verifier}):
        assert digest(dataclasses.replace(recipe, **change), "toy") not in found


def test_paper_recipes_have_the_papers_hyper_parameters(shared: Path) -> None:
    import csv

    with (shared / "papers" / "published" / "specdec" / "table_7.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["setting"] in ("WMT14 EN-DE", "any")]
    drafter: Any = RECIPES["paper"]["specdec-drafter"]
    settings = {
        "NAT drafter": {
            "learning rate": drafter.learning_rate, "dropout": drafter.dropout, "warmup": drafter.warmup_frac * drafter.steps,
            "max update": drafter.steps, "batch tokens": drafter.batch_tokens, "adam betas": drafter.adam_betas,
            "adam eps": drafter.adam_eps, "weight decay": drafter.weight_decay, "clip norm": drafter.clip_norm,
            "label smoothing": drafter.label_smoothing, "block size": drafter.block_size,
        },
        "AT verifier": {
            "adam betas": drafter.verifier.adam_betas, "weight decay": drafter.verifier.weight_decay,
            "clip norm": drafter.verifier.clip_norm, "label smoothing": drafter.verifier.label_smoothing,
        },
        "both": {"checkpoint averaging": drafter.num_averaged},
    }  # fmt: skip
    seen = 0
    for row in rows:
        ours = settings[row["model"]].get(row["metric"])
        if ours is not None:
            text = row["value"].replace("K", "000")
            published = tuple(map(float, text.strip("()").split(","))) if "(" in text else float(text)
            assert ours == pytest.approx(published), row["metric"]
            seen += 1
    assert seen == 16
    assert (drafter.activation, drafter.rate_schedule) == ("gelu", "inverse-sqrt")


def test_rates_rise_and_fall_as_they_are_named() -> None:
    paper: Any = dataclasses.replace(RECIPES["paper"]["specdec-verifier"], steps=3000)
    assert course_of(paper).rate(49) == pytest.approx(0.5)
    assert course_of(paper).rate(99) == pytest.approx(1.0)
    assert course_of(paper).rate(399) == pytest.approx(0.5)
    toy: Any = RECIPES["toy"]["specdec-verifier"]
    assert course_of(toy).rate(toy.steps - 1) < 0.02


@pytest.mark.parametrize("name", ["specdec-verifier", "specdec-drafter"])
def test_resumed_training_equals_an_unbroken_one(
    folders: dict[str, Path], tmp_path: Path, name: str, steps_of: Callable[..., Any]
) -> None:
    """Weights, averaged weights and what was reported on the way, bit for bit, with dropout and glancing on."""
    fewer = dataclasses.replace(recipe_of(name).corpus, num_held_out=4)
    recipe = dataclasses.replace(recipe_of(name), corpus=fewer, steps=8, dropout=0.1, average_every=2, num_averaged=3)
    rows, tokenizer = read_corpus(corpus_folder(name)), read_tokenizer(corpus_folder(name))
    objective = OBJECTIVES[recipe.family](recipe, rows)
    whole = build_network(recipe, tokenizer)
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    reported = steps_of(recipe, whole, objective, tmp_path / "whole")
    for before in (3, 5, None):
        broken = build_network(recipe, tokenizer)
        torch.manual_seed(before or 0)
        again = steps_of(recipe, broken, objective, tmp_path / "broken", before=before)
    assert again == reported
    assert len(reported) == loop.NUM_EVALUATIONS
    assert averaged_steps(recipe) == {4, 6, 8}
    identity = course_of(recipe).identity
    means = {part: averaged_weights(whole, tmp_path / part, {4, 6, 8}, identity) for part in ("whole", "broken")}
    for first, second in (
        (whole.state_dict(), broken.state_dict()),
        (means["whole"], means["broken"]),
    ):
        for key, weight in first.items():
            assert torch.equal(weight, second[key]), key
    last, mean = whole.state_dict()["lm_head.weight"], means["whole"]["lm_head.weight"]
    kept = [load_state(tmp_path / "whole" / f"averaged-{step}.pt", CPU) for step in (4, 6, 8)]
    parts = [one["network"]["lm_head.weight"] for one in kept]
    torch.testing.assert_close(mean, sum(parts) / 3)
    assert not torch.equal(mean, last)


def test_a_training_ends_with_the_averaged_weights(folders: dict[str, Path], tmp_path: Path) -> None:
    recipe = dataclasses.replace(recipe_of("specdec-verifier"), steps=3, average_every=1, num_averaged=2)
    rows, tokenizer = read_corpus(corpus_folder("specdec-verifier")), read_tokenizer(corpus_folder("specdec-verifier"))
    network = build_network(recipe, tokenizer)
    objective = dataclasses.replace(next_token(recipe, rows), evaluate=lambda network: {"loss_nats": 0.0})
    loop.train(recipe, network, objective, tmp_path)
    assert not network.training
    path = tmp_path / "averaged-3.pt"
    last = load_state(path, CPU)
    mean, found = averaged_weights(network, tmp_path, {2, 3}, last["identity"]), network.state_dict()
    assert all(torch.equal(weight, found[name]) for name, weight in mean.items())
    weights = last["network"]
    assert not torch.equal(found["lm_head.weight"], weights["lm_head.weight"])
    not_finite = weights | {"lm_head.weight": weights["lm_head.weight"].clone().fill_(float("nan"))}
    for state, reason in (
        ([1], "cannot be read .*dictionary"),
        (weights, "cannot be read .*left over"),  # of an earlier version
        (last | {"identity": "another seed"}, "it belongs to another training"),
        (last | {"step": 2}, "it belongs to another training"),
        (last | {"network": {"lm_head.weight": torch.ones(2)}}, "cannot be read .*missing"),
        (last | {"network": not_finite}, "cannot be read .*holds NaN"),
    ):
        save_state(state, path)
        with pytest.raises(UsageError, match=rf"averaged-3\.pt: {reason}.*; delete {tmp_path}"):
            load_averaged(network, tmp_path, {2, 3}, last["identity"])


def test_glancing_falls_over_the_training(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first to the second share, as the step says; none where a recipe has none."""
    recipe = dataclasses.replace(recipe_of("specdec-drafter"), glancing=(0.5, 0.3), steps=4)
    rows, tokenizer = read_corpus(corpus_folder("specdec-drafter")), read_tokenizer(corpus_folder("specdec-drafter"))
    network, seen = build_network(recipe, tokenizer), []
    monkeypatch.setattr(drafters, "drafter_loss", lambda *args: seen.append(args[5]) or torch.zeros(()))
    for one in (recipe, dataclasses.replace(recipe, glancing=None)):
        objective = next_block(one, rows)
        for step in (0, 2, 4):
            objective.loss(network, objective.batch(0), step, torch.Generator())
    assert seen == [pytest.approx(0.5), pytest.approx(0.4), pytest.approx(0.3), 0.0, 0.0, 0.0]


def test_dropout_is_drawn_anew_each_step_and_leaves_the_global_state_alone(
    folders: dict[str, Path], tmp_path: Path, steps_of: Callable[..., Any]
) -> None:
    recipe = dataclasses.replace(recipe_of("specdec-verifier"), steps=2, dropout=0.5)
    rows, tokenizer = read_corpus(corpus_folder("specdec-verifier")), read_tokenizer(corpus_folder("specdec-verifier"))
    network, objective, seen = build_network(recipe, tokenizer), next_token(recipe, rows), []

    def loss(*args: Any) -> torch.Tensor:
        seen.append(torch.rand(4).tolist())
        return objective.loss(*args)

    before = torch.random.get_rng_state()
    steps_of(recipe, network, dataclasses.replace(objective, loss=loss), tmp_path)
    assert seen[0] != seen[1]
    assert torch.equal(before, torch.random.get_rng_state())


def test_distilled_targets_are_the_teachers_beam_outputs(folders: dict[str, Path]) -> None:
    """Decoded one by one: the same, or a hypothesis that scores as well within rounding."""
    corpus, rows = recipe_of("specdec-drafter").corpus, read_corpus(corpus_folder("specdec-drafter"))
    plain = read_corpus(corpus_folder("specdec-teacher"))
    teacher = AutoModelForSeq2SeqLM.from_pretrained(folders["specdec-teacher"]).eval()
    assert len(rows) == len(plain)
    assert torch.equal(rows.source, plain.source)
    compared = equal = 0
    for index in range(0, len(rows), 23):
        source, target = rows.row(index)
        found = teacher.generate(
            source[None].long(), num_beams=5, do_sample=False, max_new_tokens=corpus.max_target,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        ids = found.sequences[0, 1:].tolist()
        compared, equal = compared + 1, equal + (ids == target.tolist())
        if ids != target.tolist():
            scores = [_score(teacher, source, torch.tensor(one)) for one in (ids, target.tolist())]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    assert compared >= 10
    assert equal >= compared - 2
    held_out = [plain.row(row)[1].tolist() == rows.row(row)[1].tolist() for row in range(len(rows))]
    assert sum(held_out) == facts_of(corpus_folder("specdec-drafter"))["num_unchanged"] < len(rows)


@torch.no_grad()
def _score(model: Any, source: torch.Tensor, target: torch.Tensor) -> float:
    fed = torch.cat((torch.zeros(1, dtype=torch.long), target[:-1].long()))
    logits = model(input_ids=source[None].long(), decoder_input_ids=fed[None]).logits[0]
    return logits.log_softmax(-1).gather(-1, target.long()[:, None]).mean().item()


def test_a_killed_decoding_goes_on_where_it_was(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two batches and a torn third line: no batch is decoded twice, and the corpus is the same byte for byte."""
    corpus = recipe_of("specdec-drafter").corpus
    counted, real = [], distil.beam_outputs

    def decode(*args: Any) -> list[list[int]]:
        if len(counted) == 2:
            raise KeyboardInterrupt
        counted.append(len(args[1]))
        return real(*args)

    monkeypatch.setattr(distil, "beam_outputs", decode)
    with pytest.raises(KeyboardInterrupt):
        distil.build_distilled(corpus, tmp_path, "toy")
    assert not (tmp_path / DATA).exists()
    with (tmp_path / distil.DECODED).open("a") as file:
        file.write('{"rows": [1, 2')
    counted = []
    monkeypatch.setattr(distil, "beam_outputs", lambda *args: counted.append(len(args[1])) or real(*args))
    distil.build_distilled(corpus, tmp_path, "toy")
    seal(tmp_path)
    rows = read_corpus(tmp_path)
    assert sum(counted) == len(rows) - 2 * corpus.batch_size
    assert (tmp_path / DATA).read_bytes() == (corpus_folder("specdec-drafter") / DATA).read_bytes()
    assert not (tmp_path / distil.DECODED).exists()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"rows": [1], "targets": [[3]]}',
        '{"rows": [1], "targets": [[3]], "cpu_s": 1.0}',
        '{"rows": [1], "targets": [[3]], "cpu_s": 1.0, "checksum": "0"}',
    ],
)
def test_a_line_that_no_decoding_wrote_is_refused_by_its_file(folders: dict[str, Path], tmp_path: Path, line: str) -> None:
    (tmp_path / distil.DECODED).write_text(f"{line}\n")
    with pytest.raises(UsageError, match=rf"decoded\.jsonl: cannot be read .* delete {tmp_path} and run") as caught:
        distil.build_distilled(recipe_of("specdec-drafter").corpus, tmp_path, "toy")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("content", [b"{", b"", None])
@pytest.mark.parametrize("name", ["specdec-verifier", "specdec-drafter"])
def test_a_broken_model_that_others_learn_from_is_named(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, file: str
) -> None:
    """The teacher, which decodes a corpus for the verifier, and which the drafter begins with: no remedy but to delete it."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    teacher = folder_of("specdec-teacher")
    for folder in folders["specdec-teacher"].parent.glob("corpus-specdec-*"):
        if folder.is_dir() and (name == "specdec-drafter" or "distilled" not in folder.name):
            (tmp_path / folder.name).symlink_to(folder)
    shutil.copytree(folders["specdec-teacher"], teacher)
    (teacher / file).unlink()
    if content is not None:
        (teacher / file).write_bytes(content)
    with pytest.raises(UsageError, match=rf"{teacher}: cannot be read .* delete {teacher} and run") as caught:
        build._make(recipe_of(name) if name == "specdec-drafter" else recipe_of(name).corpus, "toy", 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["specdec-teacher", "specdec-drafter", "specdec-blockwise"])
def test_a_kill_at_the_very_end_costs_nothing(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Killed before or behind the file that says that a model is whole: the next run ends with the same model, quickly."""
    recipe = dataclasses.replace(recipe_of(name), steps=8, num_averaged=2)
    whole, real = tmp_path / "whole", loop.replace_file
    held_out = text._PairBatches.held_out
    monkeypatch.setattr(text._PairBatches, "held_out", lambda batches: held_out(batches)[:1])  # evaluations take longest
    fill = functools.partial(build._fill, recipe, "toy", position=0)
    make(whole, fill)
    trained = []
    real_step = loop._step
    monkeypatch.setattr(loop, "_step", lambda *args: trained.append(args) or real_step(*args))
    for behind in (False, True):
        folder = tmp_path / str(behind)

        def killed(path: Path, data: str, behind: bool = behind) -> None:
            if path.name != DONE or behind:
                real(path, data)
            if path.name == DONE:
                raise KeyboardInterrupt

        monkeypatch.setattr(loop, "replace_file", killed)
        with pytest.raises(KeyboardInterrupt):
            make(folder, fill)
        monkeypatch.setattr(loop, "replace_file", real)
        trained.clear()
        make(folder, fill)
        assert trained == []
        weights = [path.name for path in whole.glob("*.safetensors")]
        assert weights
        assert all((folder / one).read_bytes() == (whole / one).read_bytes() for one in weights)


def test_models_learned_and_say_how(folders: dict[str, Path]) -> None:
    for name in NAMES:
        facts = facts_of(folders[name])
        assert facts["held_out_loss_nats"] < facts["unigram_entropy_nats"] - 0.5, name
        assert 0 < facts["num_parameters"] <= num_parameters(recipe_of(name))
        assert [one["step"] for one in facts["evaluations"]][-1] == recipe_of(name).steps
        names = {path.name for path in folders[name].iterdir()}
        assert names >= {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"}
        assert not {one for one in names if one.endswith(".pt")}


def test_accepted_tokens_are_counted_as_rounds_go(folders: dict[str, Path]) -> None:
    """Against a loop over one sentence at a time that drafts, compares and moves on; the report of recipe.json agrees."""
    recipe: DrafterRecipe = recipe_of("specdec-drafter")
    rows, network = read_corpus(corpus_folder("specdec-drafter")), load_network(folders["specdec-drafter"])
    sources = [rows.row(row)[0].long() for row in range(recipe.corpus.num_held_out)]
    outputs = greedy_outputs(read_network(folders["specdec-verifier"]), sources, recipe.corpus.max_target)
    accepted = rounds = 0
    for source, output in zip(sources, outputs, strict=True):
        position = 0
        while position < len(output):
            left = output[position : position + recipe.block_size]
            drafted = _draft(network, source, output[:position])[: len(left)]
            stood = int((drafted == left).long().cumprod(0).sum())
            accepted, rounds, position = accepted + stood, rounds + 1, position + stood + 1
    report = facts_of(folders["specdec-drafter"])["against_verifier"]
    assert report["accepted_per_round"] == pytest.approx(accepted / rounds, rel=0.02)  # near-ties of a batch


@torch.no_grad()
def _draft(network: Any, source: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    from methods.specdec.stack import block_inputs

    text = torch.cat((torch.zeros(1, dtype=torch.long), prefix.long()))[None]
    block = torch.full((1, network.block_size), network.mask_token_id)
    inputs = block_inputs(text, torch.tensor([text.shape[1]]), block, network.config.max_position_embeddings)
    return network(source[None], None, inputs)[0].argmax(-1)


def test_held_out_sentences_are_decoded_a_few_at_a_time(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """At paper size all of them would not fit; the report does not depend on how many."""
    recipe, rows = recipe_of("specdec-drafter"), read_corpus(corpus_folder("specdec-drafter"))
    verifier, network = read_network(folders["specdec-verifier"]), load_network(folders["specdec-drafter"])
    sizes: list[int] = []

    def count(source: torch.Tensor, *others: torch.Tensor) -> tuple[int, int]:
        sizes.append(len(source))
        return count_accepted(network, source, *others)

    whole = accepted_by_verifier(recipe, verifier, rows, count)["against_verifier"]
    monkeypatch.setattr(drafters, "SENTENCES", 5)
    parts = accepted_by_verifier(recipe, verifier, rows, count)["against_verifier"]
    assert sizes == [24, 5, 5, 5, 5, 4]
    assert whole["num_rounds"] == pytest.approx(parts["num_rounds"], rel=0.02)  # near-ties
    assert whole["tokens_per_round"] == pytest.approx(parts["tokens_per_round"], rel=0.02)


def test_training_makes_drafts_stand(folders: dict[str, Path]) -> None:
    """More accepted tokens a round than a fresh network, on held-out sentences."""
    recipe: DrafterRecipe = recipe_of("specdec-drafter")
    rows, tokenizer = read_corpus(corpus_folder("specdec-drafter")), read_tokenizer(corpus_folder("specdec-drafter"))
    fresh = next_block(recipe, rows).evaluate(build_network(recipe, tokenizer).eval())["accepted_per_round"]
    facts = facts_of(folders["specdec-drafter"])
    assert fresh < 0.2
    assert facts["held_out"]["accepted_per_round"] > fresh + 0.5
    assert facts["against_verifier"]["accepted_per_round"] > fresh + 0.5


def _loaded(name: str, dtype: str = "float64") -> tuple[Models, LoadedModel, ModelSpec]:
    models = Models(dtype=dtype)
    target, drafter = (pin_model(ModelSpec(name=f"zoo:{one}"), "test", "toy") for one in ("specdec-verifier", name))
    return models, models.get(target), drafter


@pytest.mark.parametrize("gamma", [1, 4, 6, 9])
def test_strict_drafting_equals_greedy_decoding(folders: dict[str, Path], gamma: int) -> None:
    """In fp64, on batches of 1 and 8, for gamma below, at and above the block size."""
    models, target, spec = _loaded("specdec-drafter")
    drafter = build_drafter(DrafterSpec(kind="block", model=spec), target, models)
    method = DraftAndVerify(drafter, build_rule(RuleSpec("top-1")), lambda: SCHEDULES["constant"](gamma))
    rows = read_corpus(corpus_folder("specdec-drafter"))
    prompts = [tuple(rows.row(row)[0].tolist()) for row in range(8)]
    stop, greedy = Stop(max_new_tokens=60, token_ids=frozenset(target.eos_token_ids)), Sampling(temperature=0.0)
    rounds = 0
    for batch in [(prompt,) for prompt in prompts[:4]] + [tuple(prompts)]:
        uniforms = Uniforms([0] * len(batch), stop.max_new_tokens)
        plain = Autoregressive().generate(target.session(), Inputs(batch), greedy, uniforms, stop)
        ours = method.generate(target.session(), Inputs(batch), greedy, uniforms, stop)
        assert [one.tokens for one in ours] == [one.tokens for one in plain]
        rounds += sum(len(one.steps) for one in plain) - sum(len(one.steps) for one in ours)
    assert rounds > 0


def test_the_verifier_generates_the_same_in_transformers(folders: dict[str, Path]) -> None:
    """Start token, end token and padding mean the same to it and to us."""
    _, target, _ = _loaded("specdec-drafter", "float32")
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["specdec-verifier"]).eval()
    prompt = target.encode("translate English to German: The dog runs.")
    assert prompt[-1] == target.tokenizer.eos_token_id
    found = model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, num_beams=1)[0].tolist()
    [ours] = greedy_outputs(model, [torch.tensor(prompt)], 30)
    assert found == [0, *ours.tolist()]
    assert target.eos_token_ids == (target.tokenizer.eos_token_id,)
    assert is_encoder_decoder(ModelSpec(name="zoo:specdec-verifier"), "test", "toy")


def test_training_sources_are_what_the_task_prompts(folders: dict[str, Path]) -> None:
    import tasks

    _, target, _ = _loaded("specdec-drafter", "float32")
    recipe: PairRecipe = recipe_of("specdec-verifier")
    task = tasks.get_task("wmt-en-de")
    examples = read_examples(task, "toy", "train", recipe.corpus.parts[0].num_examples, recipe.corpus.seed)
    prompts = {target.encode(task.prompt(example, "t5")) for example in examples}
    rows = read_corpus(corpus_folder("specdec-verifier"))
    assert {tuple(rows.row(row)[0].tolist()) for row in range(len(rows))} == prompts


def test_batches_of_distilled_rows_keep_held_out_rows_apart(folders: dict[str, Path]) -> None:
    recipe: PairRecipe = recipe_of("specdec-verifier")
    rows = read_corpus(corpus_folder("specdec-verifier"))
    plan = batches_for(recipe, rows).plan
    assert sorted(row for batch in plan for row in batch) == list(range(recipe.corpus.num_held_out, len(rows)))


def test_the_drafter_begins_with_the_weights_of_a_model_of_its_shape(folders: dict[str, Path]) -> None:
    recipe: DrafterRecipe = recipe_of("specdec-drafter")
    network = build_network(recipe, read_tokenizer(corpus_folder("specdec-drafter")))
    start_from(folders["specdec-teacher"], network)
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folders["specdec-teacher"]).state_dict()
    for name, weight in network.state_dict().items():
        same = weight[..., : theirs[name].shape[-1]] if name == "final_logits_bias" else weight[: len(theirs[name])]
        assert torch.equal(same, theirs[name]), name
    with pytest.raises(InputError, match=r"its .* has shape \[.*32\], the drafter's \[.*48\]"):
        start_from(folders["specdec-verifier"], network)


def test_a_drafter_that_shares_its_verifiers_encoder_leaves_it_as_it_was_and_drafts_alike(folders: dict[str, Path]) -> None:
    """Only the decoder learns; one encoding of the source, or one for each of the two, gives the same rounds."""
    ensure(["specdec-drafter-shared"], "test", "toy", workers=0)
    models, target, spec = _loaded("specdec-drafter-shared")
    rows = read_corpus(corpus_folder("specdec-drafter"))
    inputs = Inputs(tuple(tuple(rows.row(row)[0].tolist()) for row in range(6)))
    stop, greedy = Stop(max_new_tokens=40, token_ids=frozenset(target.eos_token_ids)), Sampling(temperature=0.0)
    plain = Autoregressive().generate(target.session(), inputs, greedy, Uniforms([0] * 6, 40), stop)
    found = {}
    for encoder in ("own", "shared"):  # to share is refused where a weight of the encoders differs
        drafter = build_drafter(DrafterSpec(kind="block", model=spec, options={"encoder": encoder}), target, models)
        method = DraftAndVerify(drafter, TopOne(), lambda: SCHEDULES["constant"](4))
        found[encoder] = method.generate(target.session(), inputs, greedy, Uniforms([0] * 6, 40), stop)
        assert [row.tokens for row in found[encoder]] == [row.tokens for row in plain]
    rounds = [[[step.drafted for step in row.steps] for row in rows] for rows in found.values()]
    assert rounds[0] == rounds[1]
    assert any(step.num_accepted for row in found["shared"] for step in row.steps)


def test_distilled_copies_all_of_the_corpus() -> None:
    teacher = recipe_of("specdec-teacher")
    corpus = distilled(teacher, "other", num_beams=2)
    assert (corpus.name, corpus.teacher, corpus.num_beams) == ("other", teacher, 2)
    assert all(
        getattr(corpus, field.name) == getattr(teacher.corpus, field.name)
        for field in dataclasses.fields(Corpus)
        if field.name != "name"
    )


def _copied(folders: dict[str, Path], to: Path, **changes: Any) -> ModelSpec:
    """The drafter's folder with another config.json."""
    shutil.copytree(folders["specdec-drafter"], to)
    config = json.loads((to / "config.json").read_text()) | changes
    (to / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return pin_model(ModelSpec(name=str(to)), "test", "toy")


def test_a_local_folder_drafts_as_the_zoo_does(folders: dict[str, Path], tmp_path: Path) -> None:
    models, target, _ = _loaded("specdec-drafter")
    spec = _copied(folders, tmp_path / "drafter")
    assert spec.revision
    assert build_drafter(DrafterSpec(kind="block", model=spec), target, models)


@pytest.mark.parametrize("size", [0, 512, 9000, "8", 4.5, True])
def test_block_sizes_that_cannot_be_are_refused(folders: dict[str, Path], tmp_path: Path, size: object) -> None:
    models, target, _ = _loaded("specdec-drafter")
    spec = _copied(folders, tmp_path / "drafter", block_size=size)
    with pytest.raises(UsageError, match=rf"drafter: block_size {size!r}: expected an integer from 1 to 511") as caught:
        build_drafter(DrafterSpec(kind="block", model=spec), target, models)
    assert "\n" not in str(caught.value)


def test_folders_that_are_no_drafter_are_refused_and_drafters_are_no_targets(folders: dict[str, Path]) -> None:
    models, target, spec = _loaded("specdec-drafter")
    verifier = pin_model(ModelSpec(name=str(folders["specdec-verifier"])), "test", "toy")
    with pytest.raises(UsageError, match=r"it is no block drafter .* use --drafter model"):
        build_drafter(DrafterSpec(kind="block", model=verifier), target, models)
    with pytest.raises(UsageError, match=r"zoo:specdec-drafter: it is a block drafter; expected a language model"):
        build_drafter(DrafterSpec(kind="model", model=spec), target, models)
    with pytest.raises(UsageError, match=r"zoo:specdec-drafter: it is a block drafter; expected a language model"):
        models.get(spec)


def test_a_drafter_of_another_vocabulary_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    models, target, _ = _loaded("specdec-drafter")
    spec = _copied(folders, tmp_path / "drafter")
    path = tmp_path / "drafter" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.get)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match=r"tokenizers differ: target zoo:specdec-verifier has token .* share a tokenizer"):
        build_drafter(DrafterSpec(kind="block", model=spec), target, models)


def test_runs_from_the_command_line(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Strict drafting of blocks, audited against plain decoding; the drafter of another family is one line."""
    common = [
        "--quiet",
        "--profile",
        "test",
        "--limit",
        "3",
        "--threads",
        "1",
        "--records",
        str(tmp_path),
        "--task",
        "wmt-en-de",
    ]
    pair = ["--target", "zoo:specdec-verifier", "--drafter", "block", "--rule", "top-1", "--gamma", "6"]
    command = ["run", *common, *pair, "--method", "speculative", "--max-new-tokens", "30", "--draft"]
    assert main([*command, "zoo:specdec-drafter"]) == 0
    document = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert document["audit"]["verdict"] in ("identical", "near-tie"), document["audit"]
    assert document["metrics"]["accepted_per_step"]["value"] > 0
    assert main([*command, "zoo:specdec-verifier"]) == 2
    assert "it is no block drafter" in capsys.readouterr().err
