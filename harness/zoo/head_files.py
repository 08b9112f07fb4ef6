"""A folder of trained heads: heads.safetensors, and recipe.json that says how they came about and what they gained."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from harness import environment
from harness.zoo.cache import DONE, replace_file
from harness.zoo.checkpoint import CHECKPOINT, Spent
from harness.zoo.corpus import read_corpus
from harness.zoo.descriptions import HeadRecipe
from harness.zoo.head_evaluation import Document, Evaluation, HeadData
from harness.zoo.heads import train_heads
from harness.zoo.recipes import CODE_VERSION, digest
from harness.zoo.train import one_thread
from methods.models import stack_for
from methods.ppd.heads import save_heads


def make_heads(
    recipe: HeadRecipe, corpus_folder: Path, base_folder: Path, folder: Path, source: str, position: int = 0
) -> None:
    """Train the heads of a zoo model in ``folder``, which may hold a checkpoint, on the corpus that the model learned from."""
    rows = read_corpus(corpus_folder)
    pairs = map(rows.row, range(len(rows)))
    documents = [Document(torch.cat(pair).long(), max(1, len(pair[0]))) for pair in pairs]
    cut = recipe.corpus.num_held_out
    data = HeadData(seen=documents[cut:], held_out=documents[:cut])
    identity = digest(recipe, source)
    with one_thread():
        stack = stack_for(AutoModelForCausalLM.from_pretrained(base_folder).eval().requires_grad_(False))
        heads, evaluations, spent = train_heads(
            stack, recipe.layers, recipe.training, data, folder, identity=identity, seed=recipe.seed, position=position
        )
    base = {"name": f"zoo:{recipe.teacher.name}", "revision": digest(recipe.teacher, source)}
    facts = {"recipe": asdict(recipe), "base": base, "source": source}
    finish(folder, heads, facts | outcome(evaluations, spent))
    tqdm.write(table(evaluations))


def outcome(evaluations: Sequence[Evaluation], spent: Spent) -> dict[str, Any]:
    """What recipe.json says beside the recipe: what each layer had before ("N") and has now ("Y"), and how it got there."""
    first, last = evaluations[0], evaluations[-1]
    by_layer = {
        layer: {
            "match_frac_before": first.match_frac[layer],
            "match_frac": last.match_frac[layer],
            "loss_nats_before": first.loss_nats[layer],
            "loss_nats": last.loss_nats[layer],
        }
        for layer in sorted(first.match_frac)
    }
    return {
        "code": CODE_VERSION,
        "held_out": by_layer,
        "evaluations": [asdict(item) for item in evaluations],
        "train_s": spent.wall_s,
        "train_cpu_s": spent.cpu_s,
        "environment": environment.describe(),
    }


def finish(folder: Path, heads: nn.ParameterDict, facts: Mapping[str, Any]) -> None:
    """Write the weights, then what says that they are whole; the checkpoint goes."""
    save_heads({int(layer): weight.cpu() for layer, weight in heads.items()}, folder)
    replace_file(folder / DONE, json.dumps(facts, indent=1).encode())
    (folder / CHECKPOINT).unlink(missing_ok=True)


def table(evaluations: Sequence[Evaluation]) -> str:
    """Per layer, on held-out text: match rate and loss before training (N) and after (Y)."""
    first, last = evaluations[0], evaluations[-1]
    lines = ["layer  match rate N       Y    gain   loss N       Y   (held-out text, nats a token)"]
    for layer in sorted(first.match_frac):
        before, after = first.match_frac[layer], last.match_frac[layer]
        loss = f"{first.loss_nats[layer]:8.3f} {last.loss_nats[layer]:7.3f}"
        lines.append(f"{layer:5d} {before:13.4f} {after:7.4f} {after - before:+7.4f} {loss}")
    return "\n".join(lines)
