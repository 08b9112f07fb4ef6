"""The drafts and early heads of the profile pocket: trained once into the cache, by the sizes in harness/models/pocket.toml."""

from functools import partial
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.experiment import POCKET, ModelSpec
from harness.models.fetch import fetch
from harness.models.names import num_layers, pin_model
from harness.models.pocket import TRAINED, PocketDraft, PocketHeads, PocketLearner, trained_folder
from harness.run import draft_training, head_training
from harness.run.draft_material import Material
from harness.zoo.cache import is_complete, make, verify
from harness.zoo.descriptions import HeadTraining
from harness.zoo.early_heads import paper_layers

SEED = 0


def material_of(recipe: PocketLearner, source: str) -> Material:
    """Return what is learned from; all that learns from one model at the same lengths reads the same.

    Raises:
        Unavailable: a target that cannot be fetched.
    """
    fetch(recipe.target)
    return Material(
        target=pin_model(ModelSpec(name=f"{POCKET}{recipe.target}"), "pocket", source),
        tasks=recipe.tasks,
        source=source,
        max_input_tokens=recipe.max_input_tokens,
        max_new_tokens=recipe.max_new_tokens,
        chat_template=recipe.chat_template,
        seed=SEED,
    )


def job_of(name: str, source: str) -> draft_training.Job | head_training.Job:
    """Return a training on the training parts of some data; fetches the target if the cache lacks it.

    Raises:
        UsageError: an unknown name.
        Unavailable: a target that cannot be fetched.
    """
    if (recipe := TRAINED.get(name.removeprefix(POCKET))) is None:
        raise UsageError(f"recipe {name!r}: expected one of {', '.join(TRAINED)}")
    material = material_of(recipe, source)
    return _heads_job(recipe, material) if isinstance(recipe, PocketHeads) else _draft_job(recipe, material)


def _draft_job(recipe: PocketDraft, material: Material) -> draft_training.Job:
    return draft_training.Job(
        material=material,
        layers=recipe.layers,
        width=recipe.width,
        vocabulary=recipe.vocabulary,
        minutes=20.0,
        texts=recipe.texts,
        steps=recipe.steps,
        learning_rate=recipe.learning_rate,
        seed=SEED,
    )


def _heads_job(recipe: PocketHeads, material: Material) -> head_training.Job:
    training = HeadTraining(
        epochs=recipe.epochs, learning_rate=recipe.learning_rate, batch_size=recipe.batch_size, labels="final"
    )
    return head_training.Job(
        target=material.target,
        texts=head_training.OwnAnswers(material=material, num_texts=recipe.texts),
        layers=paper_layers(num_layers(material.target, "pocket")),
        training=training,
        seed=SEED,
        dtype="float32",
    )


def trained(name: str, source: str) -> Path:
    """Return the folder of a draft or of heads, trained now if the cache lacks it. A killed training goes on where it was.

    Raises:
        UsageError: an unknown name, damaged files, or a cache that cannot be written.
        DataError: data that cannot be used.
    """
    job = job_of(name, source)
    folder = trained_folder(name, job.identity)
    if is_complete(folder):
        verify(folder)
    elif isinstance(job, head_training.Job):
        make(folder, partial(head_training.train, job))
    else:
        make(folder, partial(draft_training.train, job))
    return folder
