"""Small models of the real architectures, trained here and cached by the hash of their whole recipe."""

from harness.zoo.build import TABLE, ensure
from harness.zoo.cache import is_complete, model_folder, zoo_folder
from harness.zoo.descriptions import HeadRecipe, HeadTraining, Recipe
from harness.zoo.recipes import RECIPES, Scale, recipe_for, recipe_hash, recipes_of

__all__ = [
    "RECIPES",
    "TABLE",
    "HeadRecipe",
    "HeadTraining",
    "Recipe",
    "Scale",
    "ensure",
    "is_complete",
    "model_folder",
    "recipe_for",
    "recipe_hash",
    "recipes_of",
    "zoo_folder",
]
