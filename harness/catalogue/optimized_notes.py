"""What a reader of Optimized's tables must know: the rules, how time is profiled, the settings, the models that stand in."""

from collections.abc import Sequence

from harness.catalogue.base import Settings
from harness.catalogue.optimized_setup import GAMMA, MAX_NEW_TOKENS, SCALES, DataSet, from_zoo, num_examples
from harness.experiment import Comparison

GAIN = (
    "fewer calls, faster calls: number of calls, and mean time of one, over the baseline's; their product is the ratio of "
    "profiled times. Beside them what the paper's Tables 1 and 4 imply: most of its sigmoid's gain is fewer calls, not "
    "faster ones."
)
RULE_NOTES = (
    "Rules: baseline is the sequence of operations of transformers' own function; exact the paper's 3.2.1; fused our exact "
    "kernel, from logits; sigmoid the paper's 3.2.2, as its text describes it and as its code was released (clamps, and "
    "the row behind the last draft never activated: where every draft stands, the next token is drawn from raw logits). "
    "The paper prints one sigmoid; its number stands beside both.",
    f"Sigmoid constants: alpha = -{SCALES[True]:g}, beta = {SCALES[True]:g} for speech, -{SCALES[False]:g} and "
    f"{SCALES[False]:g} for summaries. The text at hand has lost them: from memory, unconfirmed, but for the summaries', which "
    "the released kernels define.",
    "Sampling: the paper does not say. Temperature 1 with top-k 50 is transformers' default and has the paper's numbers beside "
    "it; unfiltered is temperature 1 alone.",
)


def time_notes(settings: Settings) -> list[str]:
    if settings.device.startswith("cuda"):
        return [
            "Profiled time: the sum of the device's events in a call, each once, by torch's profiler; refused where CUDA "
            "events or the clock contradict it. The paper logged total_average(), which adds nested operations on top. "
            "Wall-clock time is taken in runs without the profiler."
        ]
    return [
        "Profiled time here is CPU time: processor time of this process during a call, all threads; the paper's is an A100's. "
        "The kernels' CPU paths run, PyTorch in place of Triton; DEVICE=cuda DTYPE=float16 is the paper's setting. At a toy "
        "vocabulary a call costs little but its number of operations; `foretoken bench kernels` has real vocabularies."
    ]


def setting_notes(settings: Settings) -> list[str]:
    return [
        f"Settings as the paper's: batch 1, {GAMMA} drafts at first, then 2 more after a round in which all stood, else 1 "
        f"fewer; at most {MAX_NEW_TOKENS[True]} tokens of speech (or what the model has positions for) and "
        f"{MAX_NEW_TOKENS[False]} of summaries; tiles of 1,024. Here {settings.dtype}; the paper's models were FP16."
    ]


def sample_notes(settings: Settings, sets: Sequence[DataSet]) -> list[str]:
    """How large the seeded samples are."""
    sizes = ", ".join(f"{num_examples(settings, data, sampled=True)} of {data.label}" for data in sets)
    return [f"A sample drawn by the seed: at most {sizes}. The paper's is 10 % of the test sets."]


def model_notes(plan: Sequence[Comparison]) -> list[str]:
    """Who stands for whom; none without arms."""
    arms = [arm for comparison in plan for arm in comparison.arms]
    pairs = dict.fromkeys(
        (arm.target.name, arm.method.drafter.model.name)
        for arm in arms
        if arm.method.drafter is not None and arm.method.drafter.model is not None
    )
    if not pairs:
        return []
    notes = ["Models here, target and draft: " + "; ".join(f"{target}, {draft}" for target, draft in pairs) + "."]
    if any(from_zoo(arm.target) for arm in arms):
        notes.append(
            "zoo: small models of the paper's architectures, trained here. Its Llama is prompted as it was trained (PPD's "
            'prompt); other models as in the paper, "Summary:" after the article. Its Whisper hears 3 seconds at a time '
            "and was trained on spoken toy sentences whatever the data."
        )
    return notes
