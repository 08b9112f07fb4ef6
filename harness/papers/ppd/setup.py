"""The models, data and sizes that each profile has in place of the PPD paper's, and the experiments made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from harness.core.errors import UsageError
from harness.core.experiment import POCKET, EarlyProbe, Experiment, ModelSpec
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.of_run import MUCH_REPETITION, repetition_frac
from harness.measures.pairing import succeeded
from harness.measures.statistics import Missing
from harness.models.names import num_layers
from harness.models.pocket import TRAINED, PocketHeads
from harness.tables import published
from harness.tables.roles import Roles, needed_model, plain_decoding, role_model
from harness.zoo.descriptions import HeadRecipe
from harness.zoo.recipes import RECIPES, scale_of
from kernels.inputs import SamplingSpec
from methods.ppd.theory import PAPER_DEPTH, scaled_layer

PAPER = "ppd"
TASKS = {"SQUAD": "squad", "WMT": "wmt-en-fr", "CNN/DM": "cnndm"}
PROBED = "vicuna-13b"  # the model of all match rates but Table 5's

UNTRAINED = Missing("nobody published them; train them with `foretoken heads` and name the folder: --model heads=FOLDER")
ZOO = {"vicuna-13b": "zoo:llama-deep", "llama-2-13b": "zoo:llama-deep", "heads": "zoo:llama-deep-heads"}
ROLES: Roles = {
    "toy": ZOO,
    "test": ZOO,
    "pocket": {"vicuna-13b": "pocket:smollm2", "llama-2-13b": "pocket:smollm2", "heads": "pocket:smollm2-heads"},
    "small": {
        "vicuna-13b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "llama-2-13b": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
        "heads": UNTRAINED,
    },
    "paper": {"vicuna-13b": "lmsys/vicuna-13b-v1.3", "llama-2-13b": "meta-llama/Llama-2-13b-hf", "heads": UNTRAINED},
}
# Of the public checkpoints above, so that a plan needs no network.
DEPTHS = {
    "pocket:smollm2": 30,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 22,
    "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T": 22,
    "lmsys/vicuna-13b-v1.3": 40,
    "meta-llama/Llama-2-13b-hf": 40,
}


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a profile: examples by data set (None: the paper's whole test sets), also of real data where that differs.

    Match rates are not timed, and rows of a batch do not influence each other. Prompts are cut to what the zoo's sources were
    cut to in training; those of public models so that 128 new tokens fit within 2048, Llama's limit.
    """

    limits: Mapping[str, int] | None = None
    real_limits: Mapping[str, int] | None = None
    batch: int
    max_input: int = 1920
    timed_limit: int


SIZES = {
    "toy": _Sizes(
        limits={"SQUAD": 640, "WMT": 256, "CNN/DM": 192},
        real_limits={"SQUAD": 320, "WMT": 1500, "CNN/DM": 100},  # all of the paper's WMT pairs
        batch=32, max_input=320, timed_limit=100,
    ),
    "test": _Sizes(limits=dict.fromkeys(TASKS, 4), batch=32, max_input=320, timed_limit=2),
    "pocket": _Sizes(limits=dict.fromkeys(TASKS, 100), batch=8, max_input=640, timed_limit=100),
    "small": _Sizes(limits={"SQUAD": 1000, "WMT": 500, "CNN/DM": 200}, batch=8, timed_limit=20),
    "paper": _Sizes(batch=4, timed_limit=100),  # a 13B model caches 0.8 MB a token and row in half precision
}  # fmt: skip


model_of = partial(role_model, ROLES)  # (settings, role) -> the name of the model that fills it, or why none does


def target_of(settings: Settings, role: str) -> ModelSpec:
    return ModelSpec(name=needed_model(ROLES, settings, role))


def heads_of(settings: Settings, role: str = PROBED) -> ModelSpec | Missing:
    """Return the trained early heads ("Y") of the target in ``role``. A replaced target has none until the user names some."""
    name, chosen = model_of(settings, "heads"), dict(settings.models)
    if isinstance(name, str) and role in chosen and "heads" not in chosen:
        return Missing(f"none are trained for {chosen[role]}; train them with `foretoken heads`, then --model heads=FOLDER")
    return name if isinstance(name, Missing) else ModelSpec(name=name)


def depth_of(settings: Settings, role: str) -> int:
    """Return a target's number of layers; no weights are loaded."""
    spec = target_of(settings, role)
    depth = DEPTHS[spec.name] if spec.name in DEPTHS else _num_layers(spec, settings.profile)
    if depth < 2:
        raise UsageError(f"model {spec.name} for the role {role}: {depth} layer; expected at least 2, so that one is early")
    return depth


_num_layers = lru_cache(maxsize=64)(num_layers)


def paper_layers() -> list[int]:
    return sorted({int(row["layer"]) for row in published.read(PAPER, "table_2")})


def layers_of(settings: Settings, role: str = PROBED) -> dict[int, int]:
    """Map the paper's layers to the layers of this target that stand for them."""
    depth = depth_of(settings, role)
    return {layer: scaled_layer(layer, depth) for layer in paper_layers()}


def setting(dataset: str) -> published.Row:
    """Return a data set's row of Table 1: prompt, generated tokens, test examples."""
    return next(row for row in published.read(PAPER, "table_1") if row["dataset"] == dataset)


def limit_of(settings: Settings, dataset: str) -> int:
    if settings.limit is not None:
        return settings.limit
    sizes = SIZES[settings.profile]
    known = sizes.limits if settings.source == "toy" else sizes.real_limits or sizes.limits
    return int(setting(dataset)["n_test"]) if known is None else known[dataset]


def decoding(settings: Settings, dataset: str, role: str, sampling: SamplingSpec, limit: int) -> Experiment:
    """Return plain decoding under the paper's prompt: until EOS, at most to the paper's length, or to just that length."""
    return plain_decoding(
        settings,
        task=TASKS[dataset],
        target=target_of(settings, role),
        sampling=sampling,
        limit=limit,
        batch_size=SIZES[settings.profile].batch,
        max_new_tokens=int(setting(dataset)["gen_tokens"]),
        max_input_tokens=SIZES[settings.profile].max_input,
        ignore_eos=settings.fixed_length,
        chat_template=settings.profile == "pocket",  # whose model is a chat model
    )


def match_arm(settings: Settings, dataset: str) -> Experiment:
    """Return greedy decoding that ranks every token at the paper's layers, by the model's own head and by the trained ones.

    Tables 2, 6, 7 and 8 read it.
    """
    layers = tuple(sorted(set(layers_of(settings).values())))
    heads = heads_of(settings)
    trained = () if isinstance(heads, Missing) else (EarlyProbe(layers=layers, heads=heads),)
    arm = decoding(settings, dataset, PROBED, SamplingSpec(), limit_of(settings, dataset))
    return arm.replace(probes=(EarlyProbe(layers=layers), *trained))


def remark(arm: Experiment, records: list[Record]) -> str:
    """Say what a reader must know of the texts behind a number: cut prompts, where outputs ended, loops."""
    good = succeeded(records)
    parts = []
    if cut := sum(bool(record.truncated_tokens) for record in good):
        parts.append(f"{cut} of {len(good)} prompts were cut to {arm.max_input_tokens} tokens")
    if good and not arm.ignore_eos:
        ended = sum(record.stop_reason == "eos" for record in good)
        mean = sum(len(record.tokens or ()) for record in good) / len(good)
        parts.append(f"{ended} of {len(good)} outputs ended at EOS; {mean:.1f} tokens on average")
    repeated = repetition_frac(good)
    if repeated is not None and repeated.value >= MUCH_REPETITION:
        parts.append(f"{repeated.value:.0%} of the outputs' 4-grams repeat earlier ones, which are easier to predict")
    return f"{arm.task}: {', '.join(parts)}" if parts else ""


def model_notes(settings: Settings, roles: list[str]) -> list[str]:
    """Say which model fills which role (the target's first), and how it differs from the paper's."""
    names = {role: name for role in roles if isinstance(name := model_of(settings, role), str)}
    if isinstance(heads_of(settings, roles[0]), Missing):
        names.pop("heads", None)
    notes = [f"Models here: {', '.join(f'{role} = {name}' for role, name in names.items())}."]
    if any(name.startswith("zoo:") for name in names.values()):
        notes.append(
            "zoo: a narrow Llama-shaped model as deep as the paper's, trained here on the training part of the same tasks."
        )
    heads = names.get("heads", "")
    recipe = RECIPES[scale_of(settings.profile)].get(heads.removeprefix("zoo:"))
    if isinstance(recipe, HeadRecipe):
        told = {"next": "to predict the text's next token", "final": "to predict what the last layer chooses"}
        labels = told[recipe.training.labels]
        notes.append(f"Heads here are trained {labels}, on the target's own training text; the paper's saw ShareGPT.")
    if isinstance(own := TRAINED.get(heads.removeprefix(POCKET)), PocketHeads):
        notes.append(
            f"Heads here are trained to predict what the last layer chooses, on {own.texts} of the target's own answers to "
            f"prompts of {', '.join(own.tasks)} that are not tested; the paper's saw ShareGPT."
        )
    if names.get("vicuna-13b") == ROLES["paper"]["vicuna-13b"]:
        notes.append("The paper says Vicuna-13B without a version; v1.3 is taken, the latest that is tuned from LLaMA.")
    return notes


def layer_notes(settings: Settings, role: str) -> list[str]:
    """Say where the paper's layers are in a model of another depth."""
    depth, layers = depth_of(settings, role), layers_of(settings, role)
    if depth == PAPER_DEPTH:
        return []
    shown = ", ".join(f"{layer} is {here}" for layer, here in layers.items())
    notes = [f"Layers are named as in the paper's models of {PAPER_DEPTH}; of the {depth} layers here, {shown}."]
    together = [[layer for layer in layers if layers[layer] == here] for here in sorted(set(layers.values()))]
    if shared := ["layers " + " and ".join(map(str, group)) for group in together if len(group) > 1]:
        notes.append(f"At this depth {'; '.join(shared)} fall together: their numbers are the same.")
    return notes


def length_notes(settings: Settings) -> list[str]:
    """Say how long the outputs are, and what is left out of the prompts."""
    lengths = {row["dataset"]: row["gen_tokens"] for row in published.read(PAPER, "table_1")}
    paper = ", ".join(f"{length} ({dataset})" for dataset, length in lengths.items())
    cut = f"Prompts longer than {SIZES[settings.profile].max_input} tokens lose the end of their longest field."
    if settings.fixed_length:
        return [
            f"EOS is ignored, as in the paper: every output has exactly {paper} tokens, what a model writes behind its own EOS "
            "included (models of the zoo begin another prompt, which is easy to predict).",
            cut,
        ]
    return [
        f"Outputs end at EOS, and what is there is pooled: long outputs weigh more than short ones, late positions have "
        f"fewer examples, and a total is not the mean over positions. An EOS counts as a token; of short outputs it is many of "
        f"the later ones. The paper ignores EOS: exactly {paper} tokens, which FIXED_LENGTH=1 does here.",
        cut,
    ]


def data_notes(settings: Settings) -> list[str]:
    if settings.source != "hub":
        return []
    pairs = setting("WMT")["n_test"]
    return [f"The paper's {pairs} WMT pairs are newsdiscusstest2015, which the Hub's WMT14 has not; DATA=FOLDER may hold them."]
