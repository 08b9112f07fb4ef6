"""The drafts of the profile pocket: distilled once into the cache, by the sizes in harness/models/pocket.toml."""

from functools import partial
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.experiment import POCKET, ModelSpec
from harness.models.fetch import fetch
from harness.models.names import pin_model
from harness.models.pocket import DRAFTS, draft_folder
from harness.run.draft_material import Material
from harness.run.draft_training import Job, train
from harness.zoo.cache import is_complete, make, verify

LEARNING_RATE, SEED = 1e-3, 0


def job_of(name: str, source: str) -> Job:
    """The training of a draft on the training parts of some data; fetches the target if the cache lacks it.

    Raises:
        UsageError: an unknown name.
        Unavailable: a target that cannot be fetched.
    """
    short = name.removeprefix(POCKET)
    if (recipe := DRAFTS.get(short)) is None:
        raise UsageError(f"recipe {name!r}: expected one of {', '.join(DRAFTS)}")
    fetch(recipe.target)
    material = Material(
        target=pin_model(ModelSpec(name=f"{POCKET}{recipe.target}"), "pocket", source),
        tasks=recipe.tasks,
        source=source,
        max_input_tokens=recipe.max_input_tokens,
        max_new_tokens=recipe.max_new_tokens,
        chat_template=True,
        seed=SEED,
    )
    return Job(
        material=material,
        layers=recipe.layers,
        width=recipe.width,
        vocabulary=recipe.vocabulary,
        minutes=20.0,
        texts=recipe.texts,
        steps=recipe.steps,
        learning_rate=LEARNING_RATE,
        seed=SEED,
    )


def distilled(name: str, source: str) -> Path:
    """Return the folder of a draft, trained now if the cache lacks it. A killed training goes on where it was.

    Raises:
        UsageError: an unknown name, damaged files, or a cache that cannot be written.
        DataError: data that cannot be used.
    """
    job = job_of(name, source)
    folder = draft_folder(name, job.identity)
    if is_complete(folder):
        verify(folder)
    else:
        make(folder, partial(train, job))
    return folder
