"""The identities of trained models: a change of a recipe, wanted or not, shows here before caches and baselines are lost."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.zoo.descriptions import HeadRecipe
from harness.zoo.recipes import REAL, RECIPES, digest, recipe_for

ROOT = Path(__file__).resolve().parents[2]
HASHES = [
    ("toy", "llama-target", "38fc1cf58007d7ef"),
    ("toy", "t5-small", "4f515056284bd4c5"),
    ("toy", "gpt-draft", "f6dc01ff8d50d851"),
    ("toy", "ngram-t5-cnndm", "db84f2afdbe3f102"),
    ("toy", "llama-deep-heads", "54d85b4f3c20d9cb"),
    ("toy", "whisper-draft", "1e6344aea3cefa93"),
    ("toy", "specdec-drafter-3t", "461210a4fe85c09d"),
    ("toy", "specdec-bart-drafter", "e5f9ee28f1ddfde9"),
    ("toy", "specdec-blockwise", "37e95413a467ea7c"),
    ("test", "llama-draft-small", "5d3db3c730e471cb"),
    ("test", "llama-deep-heads", "5a6b70f32ef622d7"),
    ("test", "whisper-target", "68dee28314ab13c6"),
    ("test", "specdec-deep-drafter", "8c2c5debb95cea68"),
    ("test", "specdec-drafter-shared", "6e7e9535c1855db8"),
    ("test", "specdec-big-drafter", "c6e12f1ed2ac53a8"),
    ("small", "ngram-gpt", "7e100c4f7716505b"),
    ("paper", "gpt-target", "be1f55e92de37bbd"),
    ("paper", "whisper-draft", "bdd896b2b11380c7"),
    ("paper", "specdec-en-ro-drafter", "e38de10f02db4af3"),
    ("paper", "specdec-bart-verifier", "0b388bc2f4d7d073"),
    ("paper", "specdec-big-blockwise", "9c378e8557c886cd"),
    ("real", "specdec-multi30k-drafter-printed", "035864799fe2b4b0"),
    ("real", "specdec-de-en-verifier", "ebec29235987591a"),
    ("real", "specdec-bart-teacher", "bfdb64cd7317d030"),
]


@pytest.mark.parametrize(("scale", "name", "expected"), HASHES)
def test_recipes_are_what_they_were(scale: str, name: str, expected: str) -> None:
    recipes = REAL if scale == "real" else RECIPES[scale]  # type: ignore[index]
    assert digest(recipes[name], "toy") == expected


@pytest.mark.parametrize("module", ["recipes", "families", "specdec", "descriptions", "cache"])
def test_recipes_are_read_without_torch(module: str) -> None:
    """A plan or a table that names a model must not pay for the library that trains it."""
    code = f"import sys, harness.zoo.{module}; sys.exit(sum(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_further_training_differs_by_its_seed_alone() -> None:
    first, third = recipe_for("gpt-draft", "toy", "toy"), recipe_for("gpt-draft@2", "toy", "toy")
    assert replace(third, name=first.name, seed=first.seed) == first
    assert third.seed == first.seed + 2
    heads = recipe_for("llama-deep-heads@1", "toy", "toy")
    assert isinstance(heads, HeadRecipe)
    assert heads.teacher == recipe_for("llama-deep@1", "toy", "toy") or heads.teacher.name == "llama-deep@1"


@pytest.mark.parametrize("name", ["gpt-draft@", "gpt-draft@0", "gpt-draft@x", "gpt-draft@-1", "specdec-verifier@1", "none@1"])
def test_no_such_training(name: str) -> None:
    with pytest.raises(UsageError, match="zoo model"):
        recipe_for(name, "toy", "toy")
