"""SpecDec's variants: what the recipes say at every scale, ensembles of teachers, blockwise heads, BART."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, ModelSpec, RuleSpec
from harness.models.fit import Models
from harness.models.names import pin_model
from harness.run.build import build_drafter, build_rule
from harness.zoo import build
from harness.zoo.build import ensure
from harness.zoo.corpus import read_corpus
from harness.zoo.descriptions import (
    BlockwiseRecipe,
    Distilled,
    DrafterRecipe,
    EnsembleDistilled,
    PairRecipe,
    distilled,
    teachers_of,
)
from harness.zoo.distil import beam_outputs
from harness.zoo.drafters import count_correct_heads, count_rounds, new_heads, next_tokens
from harness.zoo.networks import num_parameters
from harness.zoo.recipes import REAL, RECIPES, digest, recipe_for
from harness.zoo.specdec import BLOCK_SIZES, shape_of
from harness.zoo.state import CHECKPOINT
from methods.autoregressive import Autoregressive
from methods.models import stack_for
from methods.parts import SCHEDULES
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.types import Generation, Inputs, Stop

SCALES = ("toy", "test", "paper")
ALIKE = ("alike-verifier", "alike-drafter")  # the paper's base pair is alike, so its scale has no other
VARIANTS = {
    "verifier-raw", "drafter-raw", "blockwise", "big-verifier", "big-drafter", "big-blockwise",
    "verifier-3t", "drafter-3t", "big-verifier-3t", "big-drafter-3t", "deep-verifier", "deep-drafter", "drafter-shared",
    *(f"{of}-{role}" for of in ("de-en", "en-ro", "ro-en", "bart") for role in ("teacher", "verifier", "drafter")),
}  # fmt: skip
PAIRS = {"specdec-blockwise": "specdec-verifier", "specdec-bart-drafter": "specdec-bart-verifier"}


@pytest.fixture(scope="module")
def folders(zoo_cache: Path) -> dict[str, Path]:
    """Heads and a summarizer's drafter; what they need is trained with them."""
    wanted = ensure(list(PAIRS), "test", "toy", workers=0)
    return wanted | {name: folder_of(name) for name in PAIRS.values()}


def recipe_of(name: str, scale: str = "test") -> Any:
    return RECIPES[scale][name]  # type: ignore[index]


def folder_of(name: str) -> Path:
    return build.folder_of(recipe_of(name), "toy")


def rows_of(name: str) -> Any:
    return read_corpus(build.folder_of(recipe_of(name).corpus, "toy"))


def switched(scale: str) -> str:
    """The ablation of the base drafter's glancing."""
    return "drafter-glancing" if recipe_of("specdec-drafter", scale).glancing is None else "drafter-plain"


def facts_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "recipe.json").read_text())


def test_real_text_has_the_toy_models_names_roles_and_block_sizes_but_not_their_hashes() -> None:
    """The catalogue's roles, gammas and notes hold for either; data that is generated keeps the toy recipes."""
    roles = ("teacher", "verifier", "drafter", "verifier-raw", "drafter-raw", "drafter-glancing")
    roles += ("drafter-printed", "drafter-printed-plain", "alike-verifier", "alike-drafter")
    captions = {f"specdec-multi30k-{role}" for role in roles}
    assert set(REAL) - captions == {name for name in RECIPES["toy"] if name.startswith("specdec-")}
    for name in sorted(set(REAL) - captions):
        recipe = REAL[name]
        toy = recipe_of(name, "toy")
        assert recipe_for(name, "toy", "hub") == recipe_for(name, "toy", "a/folder") == recipe
        assert recipe_for(name, "toy", "toy") == toy
        assert digest(recipe, "toy") != digest(toy, "toy")
        same = ("family", "block_size", "num_drafts", "glancing", "num_layers", "num_encoder_layers")
        assert [getattr(recipe, field, None) for field in same] == [getattr(toy, field, None) for field in same], name
        assert [part.task for part in recipe.corpus.parts] == [part.task for part in toy.corpus.parts]
    assert recipe_for("t5-small", "toy", "hub") == recipe_of("t5-small", "toy")
    assert recipe_for("specdec-drafter", "test", "hub") == recipe_of("specdec-drafter", "test")


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_has_every_variant_on_the_right_corpus_and_verifier(scale: str) -> None:
    recipes = {name.removeprefix("specdec-"): recipe for name, recipe in RECIPES[scale].items() if "specdec-" in name}  # type: ignore[index]
    sizes = {f"drafter-k{k}": k for k in BLOCK_SIZES[scale]}
    base = {"teacher", "verifier", "drafter"}
    alike = set() if scale == "paper" else set(ALIKE)
    assert set(recipes) - {"big-start"} == base | VARIANTS | alike | set(sizes) | {switched(scale)}
    assert {name: recipes[name].block_size for name in sizes} == sizes
    for name in sorted(VARIANTS):
        recipe, teacher = recipes[name], recipes["teacher"]
        if name.endswith(("drafter", "drafter-3t", "blockwise")):
            assert recipe.corpus == recipe.verifier.corpus, name
        if name.endswith(("raw", "teacher")):
            assert not isinstance(recipe.corpus, Distilled), name
        elif name[:5] in ("de-en", "en-ro", "ro-en", "bart-"):
            assert recipe.corpus.teacher == recipes[f"{name.rsplit('-', 1)[0]}-teacher"], name
        else:
            assert recipe.corpus.teacher == teacher, name
    tasks = [recipes[f"{of}-verifier"].corpus.parts[0].task for of in ("de-en", "en-ro", "ro-en", "bart")]
    assert tasks == ["wmt-de-en", "wmt-en-ro", "wmt-ro-en", "cnndm"]
    assert (recipes["bart-verifier"].family, recipes["bart-drafter"].family) == ("bart", "bart-block")
    for name in ("drafter-3t", "big-drafter-3t"):
        assert [one.seed for one in teachers_of(recipes[name].corpus)] == [0, 1, 2]
        one, three = recipes[name.removesuffix("-3t")], recipes[name]
        assert dataclasses.replace(three, name=one.name, corpus=one.corpus, verifier=one.verifier) == one


@pytest.mark.parametrize("scale", SCALES)
def test_drafters_that_are_compared_learn_equally_long(scale: str) -> None:
    base: Any = recipe_of("specdec-drafter", scale)
    for name in ("drafter-raw", switched(scale), "drafter-3t"):
        other = recipe_of(f"specdec-{name}", scale)
        assert (other.steps, other.batch_tokens, other.block_size) == (base.steps, base.batch_tokens, base.block_size)
    assert (recipe_of(f"specdec-{switched(scale)}", scale).glancing is None) != (base.glancing is None)
    sized = [recipe_of(f"specdec-drafter-k{k}", scale) for k in BLOCK_SIZES[scale]]
    assert (
        len(
            {
                dataclasses.replace(one, name="", block_size=0)
                for one in (*sized, dataclasses.replace(base, steps=sized[0].steps))
            }
        )
        == 1
    )
    assert recipe_of("specdec-big-drafter", scale).steps == sized[0].steps
    assert base.block_size in BLOCK_SIZES[scale]


def test_paper_sizes_are_the_papers(shared: Path) -> None:
    import csv

    def shape(name: str) -> tuple[int, ...]:
        recipe = recipe_of(f"specdec-{name}", "paper")
        return tuple(getattr(recipe, field) for field in ("width", "ff_width", "num_heads", "num_encoder_layers", "num_layers"))

    big, base = (1024, 4096, 16, 6, 6), (512, 2048, 8, 6, 6)
    assert [shape(name) for name in ("big-verifier", "big-drafter", "de-en-teacher")] == [big] * 3
    assert [shape(name) for name in ("verifier-3t", "drafter-3t", "en-ro-teacher", "ro-en-drafter")] == [base] * 4
    assert [shape(name) for name in ("deep-verifier", "deep-drafter")] == [(512, 2048, 8, 12, 2)] * 2
    assert [shape(name) for name in ("bart-verifier", "bart-drafter")] == [(768, 3072, 12, 6, 6)] * 2
    assert recipe_of("specdec-big-drafter", "paper").block_size == 30
    with (shared / "papers" / "published" / "specdec" / "table_7.csv").open(newline="") as file:
        rows = {row["metric"]: row["value"] for row in csv.DictReader(file) if row["setting"] == "WMT16 EN-RO"}
    for name in ("en-ro-drafter", "ro-en-drafter"):
        drafter = recipe_of(f"specdec-{name}", "paper")
        ours = {
            "learning rate": drafter.learning_rate, "dropout": drafter.dropout, "warmup": drafter.warmup_frac * drafter.steps,
            "max update": drafter.steps, "batch tokens": drafter.batch_tokens,
        }  # fmt: skip
        assert {key: float(value.replace("K", "000")) for key, value in rows.items()} == pytest.approx(ours)


def test_hashes_reach_every_teacher_and_the_heads_verifier() -> None:
    recipe, heads = recipe_of("specdec-drafter-3t"), recipe_of("specdec-blockwise")
    assert isinstance(recipe, DrafterRecipe)
    assert isinstance(recipe.corpus, EnsembleDistilled)
    assert [one.seed for one in teachers_of(recipe.corpus)] == [0, 1, 2]
    assert recipe.verifier.corpus == recipe.corpus
    assert isinstance(heads, BlockwiseRecipe)
    assert heads.verifier.corpus == heads.corpus

    def of(one: PairRecipe, **changes: Any) -> str:
        return digest(dataclasses.replace(one, **changes), "toy")

    fewer = dataclasses.replace(recipe.corpus, others=recipe.corpus.others[:1])
    hashes = [of(heads), of(heads, num_drafts=9), of(heads, draws_head=True), of(heads, verifier=recipe.verifier)]
    hashes += [of(recipe), of(recipe, corpus=fewer)]
    assert len(set(hashes)) == 6


@pytest.mark.parametrize("scale", ["toy", "test", "paper"])
def test_no_drafter_begins_before_its_verifier_could(scale: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its report would train the verifier before that one's corpus is there."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    missing = build.missing_of([one for one in RECIPES[scale].values() if "specdec" in one.name], "toy")  # type: ignore[index]
    jobs = {folder: build.job_of(one, "toy", missing) for folder, one in missing.items()}
    drafters = {folder: one for folder, one in missing.items() if isinstance(one, DrafterRecipe)}
    assert len(drafters) >= 12
    for folder, one in drafters.items():
        assert jobs[build.folder_of(one.verifier, "toy")].needs <= jobs[folder].needs


@pytest.fixture(scope="module")
def models() -> list[Any]:
    """Two small ones that disagree."""
    recipe = recipe_of("specdec-verifier")
    found = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = specdec_network_config(recipe)
            model = AutoModelForSeq2SeqLM.from_config(config).eval().double().requires_grad_(False)
            for weight in model.parameters():
                weight.mul_(1.5)
            found.append(model)
    return found


def specdec_network_config(recipe: PairRecipe) -> Any:
    from harness.zoo.networks import _marian_config

    return _marian_config(recipe, {"vocab_size": 60, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None})


def sources() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.cat((torch.randint(2, 60, (length,), generator=generator), torch.tensor([1]))) for length in (3, 9, 5, 1)]


def test_one_teacher_or_the_same_one_thrice_is_transformers_beam_search(models: list[Any]) -> None:
    model = models[0]
    stack = stack_for(model)
    wanted = []
    for source in sources():
        ids = model.generate(source[None], num_beams=5, do_sample=False, max_new_tokens=12, eos_token_id=1)[0, 1:].tolist()
        wanted.append(ids[: ids.index(1) + 1] if 1 in ids else ids)
    assert beam_outputs([stack], sources(), 5, 12) == wanted
    assert beam_outputs([stack] * 3, sources(), 5, 12) == wanted


@torch.no_grad()
def test_several_teachers_vote_with_their_mean_probability(models: list[Any]) -> None:
    """One beam: against a loop over transformers' forward pass, which no single teacher agrees with."""
    stacks, together = [stack_for(model) for model in models], []
    for source in sources():
        text = [0]
        while len(text) <= 12 and text[-1] != 1:
            fed = torch.tensor([text])
            votes = [model(input_ids=source[None], decoder_input_ids=fed).logits[0, -1].softmax(-1) for model in models]
            text.append(int((sum(votes) / len(votes)).argmax()))
        together.append(text[1:])
    assert beam_outputs(stacks, sources(), 1, 12) == together
    assert all(beam_outputs([stack], sources(), 1, 12) != together for stack in stacks)


def test_an_ensembles_corpus_is_the_first_teachers_but_for_its_targets() -> None:
    teacher = recipe_of("specdec-teacher")
    corpus = distilled(teacher, "both", others=[dataclasses.replace(teacher, seed=1)], num_beams=2)
    assert (corpus.name, corpus.num_beams, len(teachers_of(corpus))) == ("both", 2, 2)
    assert corpus.parts == teacher.corpus.parts
    needed = build.dependencies(corpus)
    assert needed == (teacher.corpus, *teachers_of(corpus))


def test_big_and_deep_drafters_begin_with_a_model_of_their_shape() -> None:
    for scale in ("toy", "test"):
        for name in ("big-drafter", "deep-drafter", "bart-drafter", "de-en-drafter", "drafter-3t", "drafter-k6"):
            drafter = recipe_of(f"specdec-{name}", scale)
            shapes = [shape_of(one) for one in (drafter, drafter.initial)]
            assert shapes[0] == shapes[1], name
            assert {drafter.family, drafter.initial.family} in ({"block", "marian"}, {"bart-block", "bart"})
    papers = {name for name, recipe in RECIPES["paper"].items() if isinstance(recipe, DrafterRecipe) and recipe.initial}
    assert papers == {"specdec-drafter-shared"}
    assert RECIPES["paper"]["specdec-drafter"].initial is None


@pytest.mark.parametrize("name", list(PAIRS))
def test_variants_learned_and_say_how(folders: dict[str, Path], name: str) -> None:
    facts, recipe = facts_of(folders[name]), recipe_of(name)
    first, last = facts["evaluations"][0], facts["evaluations"][-1]
    assert last["step"] == recipe.steps
    assert last["loss_nats"] < first["loss_nats"]
    assert facts["held_out"]["accepted_per_round"] > 0.3
    assert facts["against_verifier"]["accepted_per_round"] > 0.3
    assert facts["against_verifier"]["verifier"] == PAIRS[name]
    assert 0 < facts["num_parameters"] <= num_parameters(recipe)
    assert not [path.name for path in folders[name].iterdir() if path.suffix == ".pt"]


def drafted(name: str, gamma: int, num_sources: int) -> tuple[list[Generation], list[Generation]]:
    """Greedy and strict drafting in fp64, on held-out sources as one batch."""
    models = Models(dtype="float64")
    target, spec = models.get(pin_model(ModelSpec(name=f"zoo:{PAIRS[name]}"), "test", "toy")), ModelSpec(name=f"zoo:{name}")
    kind = "blockwise" if "blockwise" in name else "block"
    drafter = build_drafter(DrafterSpec(kind=kind, model=pin_model(spec, "test", "toy")), target, models)
    rule = build_rule(RuleSpec("top-1"))
    method = DraftAndVerify(drafter, rule, lambda: SCHEDULES["constant"](gamma))
    prompts, most = [tuple(rows_of(name).row(row)[0].tolist()) for row in range(num_sources)], recipe_of(name).corpus.max_target
    stop, greedy = Stop(max_new_tokens=most, token_ids=frozenset(target.eos_token_ids)), Sampling(temperature=0.0)

    def run(one: Any) -> list[Generation]:
        return one.generate(target.session(), Inputs(tuple(prompts)), greedy, Uniforms([0] * num_sources, most), stop)

    return run(Autoregressive()), run(method)


@pytest.mark.parametrize("name", list(PAIRS))
def test_strict_drafting_equals_greedy_decoding(folders: dict[str, Path], name: str) -> None:
    recipe = recipe_of(name)
    most = recipe.num_drafts if isinstance(recipe, BlockwiseRecipe) else recipe.block_size
    for gamma in (1, most):
        plain, ours = drafted(name, gamma, 8)
        assert [one.tokens for one in ours] == [one.tokens for one in plain]
        assert sum(len(one.steps) for one in ours) < sum(len(one.steps) for one in plain)


def test_accepted_tokens_of_heads_are_counted_as_rounds_go(folders: dict[str, Path]) -> None:
    """The report of recipe.json against decoding itself."""
    name = "specdec-blockwise"
    recipe = recipe_of(name)
    _, ours = drafted(name, recipe.num_drafts, recipe.corpus.num_held_out)
    rounds = sum(len(one.steps) for one in ours)
    report = facts_of(folders[name])["against_verifier"]
    assert report["num_rounds"] == pytest.approx(rounds, rel=0.02)  # near-ties
    assert report["tokens_per_round"] == pytest.approx(sum(len(one.tokens) for one in ours) / rounds, rel=0.02)


def test_leading_heads_by_hand() -> None:
    """A vocabulary of unit vectors: each head's state is the token that it says."""
    outputs, lengths = torch.tensor([[3, 4, 5, 1], [2, 1, 0, 0]]), torch.tensor([4, 2])
    said = torch.tensor([[[4, 5], [5, 9], [9, 9], [1, 1]], [[1, 0], [0, 0], [0, 0], [0, 0]]])

    class Saying:
        num_heads = 2

        def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(said, 10).float()

    seen: list[torch.Size] = []
    project = lambda states: seen.append(states.shape) or states  # noqa: E731
    leading = count_correct_heads(Saying(), project, torch.zeros(2, 4, 1), outputs, lengths)  # type: ignore[arg-type]
    assert seen == [(2, 4, 10)] * 2, "the logits of one head at a time: at paper size all of them would be 324 GB"
    assert leading.tolist() == [[2, 1, 0, 0], [1, 0, 0, 0]]
    # 3 | 4 5 1 and 2 | 1: behind an undrafted token two and one drafts stand.
    assert count_rounds(leading, lengths) == (3, 4)


def test_resumed_training_of_heads_equals_an_unbroken_one(
    folders: dict[str, Path], tmp_path: Path, steps_of: Callable[..., Any]
) -> None:
    recipe, verifier, rows = few_steps(folders, draws_head=True)
    objective, whole = next_tokens(recipe, verifier, rows), new_heads(recipe)
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    reported = steps_of(recipe, whole, objective, tmp_path / "whole")
    for before in (2, 3, None):
        broken = new_heads(recipe)
        again = steps_of(recipe, broken, objective, tmp_path / "broken", before=before)
    assert again == reported
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, broken.state_dict()[name]), name
        assert not torch.equal(weight, new_heads(recipe).state_dict()[name]), name


def few_steps(folders: dict[str, Path], **changes: Any) -> tuple[BlockwiseRecipe, Any, Any]:
    """The heads' recipe with four updates and four held-out sentences, their verifier, and the corpus."""
    recipe = recipe_of("specdec-blockwise")
    fewer = dataclasses.replace(recipe.corpus, num_held_out=4)
    recipe = dataclasses.replace(recipe, corpus=fewer, steps=4, average_every=2, num_averaged=2, **changes)
    return recipe, AutoModelForSeq2SeqLM.from_pretrained(folders["specdec-verifier"]).eval(), rows_of("specdec-blockwise")


def test_a_checkpoint_of_another_recipe_is_refused(
    folders: dict[str, Path], tmp_path: Path, steps_of: Callable[..., Any]
) -> None:
    """Of another shape, and of the same shape with another rate: one line that names the file and the remedy."""
    recipe, verifier, rows = few_steps(folders)

    def train(one: BlockwiseRecipe) -> None:
        steps_of(one, new_heads(one), next_tokens(one, verifier, rows), tmp_path, before=2)

    train(recipe)
    for change in ({"num_drafts": 2}, {"learning_rate": 1e-4}):
        with pytest.raises(UsageError, match=rf"{CHECKPOINT}: it belongs to another training; delete") as caught:
            train(dataclasses.replace(recipe, **change))
        assert "\n" not in str(caught.value)


def test_heads_and_drafters_of_another_model_are_refused(folders: dict[str, Path]) -> None:
    models = Models()
    heads, drafter = (pin_model(ModelSpec(name=f"zoo:{name}"), "test", "toy") for name in PAIRS)
    translator, summarizer = (models.get(pin_model(ModelSpec(name=f"zoo:{name}"), "test", "toy")) for name in PAIRS.values())
    with pytest.raises(UsageError, match=r"draft zoo:specdec-blockwise for .*trained on zoo:specdec-verifier; expected that"):
        build_drafter(DrafterSpec(kind="blockwise", model=heads), summarizer, models)
    with pytest.raises(UsageError, match=r"(vocabularies|tokenizers) differ: target zoo:specdec-verifier has"):
        build_drafter(DrafterSpec(kind="block", model=drafter), translator, models)
    with pytest.raises(UsageError, match=r"draft zoo:specdec-bart-drafter: it holds no blockwise heads"):
        build_drafter(DrafterSpec(kind="blockwise", model=drafter), summarizer, models)
