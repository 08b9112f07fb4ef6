"""What a reader of SpecDec's tables must know: what the columns are, which models stand in, what they were trained on."""

import json
from collections.abc import Sequence

from harness import zoo
from harness.catalogue import published
from harness.catalogue.specdec_setup import EFFICIENCY, PAPER, QUALITY
from harness.experiment import Comparison, Experiment, ModelSpec
from harness.model_files import ZOO
from harness.models import scale_of
from harness.zoo.build import folder_of
from harness.zoo.cache import DONE
from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe, PairRecipe, Recipe
from tasks.scoring import bleu, rouge

COLUMN_NOTES = {
    "iterations": "iterations: decoding rounds a sentence, as the paper counts them: steps of the search, tokens of AT, blocks "
    "of the drafter alone, drafts with their verification of SpecDec.",
    "speed": "speed: seconds a sentence of AT with beam 5 over the row's, batch 1, encoders included, all arms of a verifier "
    "interleaved; the faster of our beam search and transformers' is the baseline (the paper's was fairseq's). over greedy: "
    "the same over AT with b = 1, the fair comparison, since SpecDec gives greedy decoding's output.",
    "over strict": "over strict: the same over SpecDec that accepts the verifier's first choices alone.",
    "BLEU": "BLEU: tokenised and case-sensitive, as in the paper ({bleu}): the international tokeniser stands for Moses', "
    "which is not at hand. sacreBLEU: {sacrebleu}.",
    "ROUGE-1": "ROUGE: {rouge}.",
    "as greedy": "as greedy: percent of outputs that are AT's with b = 1, token for token. Where one of strict SpecDec is not, "
    "the runner replays both in fp64, and anything but a near-tie of two logits bars its speed.",
    "emitted": "emitted: tokens a round, the verifier's own included (what the authors' code calls accepted tokens); accepted: "
    "drafted tokens that stood, a round; of verified, of drafted: the same over drafts up to the first refused one, over all.",
    "of base": "of base: tokens a round, percent of those of the drafter that the row is a change of, which is its name up to "
    "the last comma, the same sentences.",
    "repetition": "repetition: percent of tokens that repeat the one before them.",
    "COMET": "COMET: wmt20-comet-da, as in the paper, the mean over sentences.",
}


def column_notes(columns: Sequence[str]) -> list[str]:
    """Of the columns that a table has; signatures are the metrics' own."""
    signatures = {"bleu": bleu.signature("bleu"), "sacrebleu": bleu.signature("sacrebleu"), "rouge": rouge.signature()}
    return [note.format(**signatures) for name, note in COLUMN_NOTES.items() if name in columns]


def arm_notes(plan: Sequence[Comparison]) -> list[str]:
    """Models and rules of the arms; none without arms."""
    arms = [arm for comparison in plan for arm in comparison.arms]
    if not arms:
        return []
    drafters = [arm.method.drafter.model for arm in arms if arm.method.drafter is not None]
    specs = dict.fromkeys([arm.target for arm in arms] + [spec for spec in drafters if spec is not None])
    notes = [f"Models here: {'; '.join(_described(spec, arms[0]) for spec in specs)}."]
    if any(spec.name.startswith(ZOO) for spec in specs) and arms[0].profile != "paper":
        notes.append(
            "zoo: models of the paper's architectures, small, trained here on the training part of the same data: teacher, the "
            "corpus that it writes, verifier and drafter on that. Models of other updates than the base ones differ for that "
            "reason too."
        )
    if any(arm.method.rule == "top-beta" for arm in arms):
        notes.append(
            "SpecDec++ is the rule (top-beta, tau) on the verifier's scores, as in the authors' code; the paper's equations "
            f"print the drafter's. High quality: {QUALITY}; high efficiency: {EFFICIENCY}. A block that stands whole is "
            "followed by the verifier's own token."
        )
    return notes


def source_notes(table: str) -> list[str]:
    """Which of a table's published numbers are another version's of the paper, or told by others."""
    foreign: dict[str, list[str]] = {}
    for row in published.read(PAPER, table):
        if row["value"] and "public text" in row["source"] and "paper text" not in row["source"]:
            said = f"{row['note']}, from a {row['source']}"
            foreign.setdefault(said, []).append(f"{row['metric']} of {row['model']}, {row['setting']}")
    return [f"(paper): {'; '.join(cells)}: {said}." for said, cells in foreign.items()]


def _described(spec: ModelSpec, arm: Experiment) -> str:
    """A zoo model with its shape, for how many updates it was trained, and what it began with."""
    recipe = _recipe_of(spec, arm)
    if recipe is None:
        return spec.name
    shape = f"{recipe.num_encoder_layers} + {recipe.num_layers} layers, width {recipe.width}"
    if isinstance(recipe, BlockwiseRecipe):
        shape = f"{recipe.num_drafts} heads on {recipe.verifier.name}"
    if isinstance(recipe, DrafterRecipe):
        shape += f", k = {recipe.block_size}"
    begun = recipe.initial if isinstance(recipe, DrafterRecipe) else None
    behind = "" if begun is None else f" behind {begun.steps} of {begun.name}"
    return f"{spec.name} ({shape}, {recipe.steps} updates{behind})"


def _recipe_of(spec: ModelSpec, arm: Experiment) -> Recipe | None:
    name, scale = spec.name.removeprefix(ZOO), scale_of(arm.profile)
    recipe = zoo.recipes_of(scale, arm.source).get(name) if spec.name.startswith(ZOO) else None
    return recipe if isinstance(recipe, Recipe) else None


def training_rows(arm: Experiment) -> str:
    """On how many rows the verifier of an arm was trained, where its data is a folder; a folder may hold few.

    Rows held out to watch the training are none of them.
    """
    recipe = _recipe_of(arm.target, arm)
    if arm.source in ("toy", "hub") or not isinstance(recipe, PairRecipe):
        return ""
    facts = folder_of(recipe.corpus, arm.source) / DONE
    if not facts.is_file():
        return "on how many rows verifier and drafter were trained is unknown: their corpus is not in the zoo's cache"
    num_rows = json.loads(facts.read_text(encoding="utf8"))["num_rows"]
    return f"verifier and drafter were trained on {num_rows - recipe.corpus.num_held_out} rows"
