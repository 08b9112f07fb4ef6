"""How many of a trained drafter's tokens its verifier would accept on held-out sentences, for recipe.json."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM

from harness.zoo.corpus import Encoded
from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe
from harness.zoo.train import device_of
from methods.autoregressive import Autoregressive
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.types import Inputs, Stop

SENTENCES = 64  # decoded, and drafted for, at a time
# (accepted drafts, rounds) of strict verification, from sources, their mask, the verifier's outputs and their lengths.
CountAccepted = Callable[[Int[Tensor, "B S"], Bool[Tensor, "B S"], Int[Tensor, "B M"], Int[Tensor, "B"]], tuple[int, int]]


def read_verifier(recipe: DrafterRecipe | BlockwiseRecipe, folder: Path) -> Any:
    """Frozen, where the recipe trains."""
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)
    return model.eval().requires_grad_(False).to(device_of(recipe))


def accepted_by_verifier(
    recipe: DrafterRecipe | BlockwiseRecipe, verifier: Any, rows: Encoded, count: CountAccepted
) -> dict[str, Any]:
    """Mean accepted and emitted tokens a round against the verifier's own greedy outputs."""
    num_sentences, accepted, rounds, num_tokens = recipe.corpus.num_held_out, 0, 0, 0
    for first in range(0, num_sentences, SENTENCES):
        sources = [rows.row(row)[0].long() for row in range(first, min(first + SENTENCES, num_sentences))]
        outputs = greedy_outputs(verifier, sources, recipe.corpus.max_target)
        source, output = (pad_sequence(part, batch_first=True).to(verifier.device) for part in (sources, outputs))
        source_ends, lengths = (torch.tensor([len(one) for one in part], device=source.device) for part in (sources, outputs))
        mask = torch.arange(source.shape[1], device=source.device) < source_ends.unsqueeze(1)
        more = count(source, mask, output, lengths)
        accepted, rounds, num_tokens = accepted + more[0], rounds + more[1], num_tokens + int(lengths.sum())
    return {
        "against_verifier": {
            "verifier": recipe.verifier.name,
            "num_sentences": num_sentences,
            "num_rounds": rounds,
            "accepted_per_round": accepted / rounds,
            "tokens_per_round": num_tokens / rounds,
        }
    }


def greedy_outputs(model: Any, sources: Sequence[Int[Tensor, "s"]], max_new_tokens: int) -> list[Int[Tensor, "m"]]:
    """What a model says greedily, EOS included."""
    session = ModelSession(stack_for(model))
    inputs = Inputs(tuple(tuple(source.tolist()) for source in sources))
    stop = Stop(max_new_tokens=max_new_tokens, token_ids=frozenset({model.generation_config.eos_token_id}))
    uniforms = Uniforms([0] * len(sources), max_new_tokens)
    found = Autoregressive().generate(session, inputs, Sampling(temperature=0.0), uniforms, stop)
    return [torch.tensor(generation.tokens) for generation in found]
