"""Early heads: an output projection for each of several intermediate layers of a frozen decoder-only model (PPD 4, Table 4).

A head stands behind the model's own final norm, which stays frozen like everything else, and begins as the model's own
projection. One pass of the frozen model serves all heads: what they learn does not interact, so the sum of their losses trains
each as if it were alone. The paper names no schedule: the rate rises linearly and falls as half a cosine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from harness.core.errors import UsageError
from harness.core.experiment import ZOO
from harness.zoo.corpus import read_corpus
from harness.zoo.descriptions import HeadRecipe, HeadTraining
from harness.zoo.loop import Course, Evaluation, Objective, evenly, finish, one_thread, run_steps
from harness.zoo.networks import read_network
from harness.zoo.recipes import digest, folder_of
from harness.zoo.state import Spent, generator_of, heads_optimizer, rate_share
from methods.models import stack_for
from methods.models.base import Stack
from methods.ppd.heads import save_heads
from methods.ppd.theory import scaled_layer
from methods.session import ModelSession
from methods.types import Inputs

PAPER_LAYERS = (10, 20, 30, 35, 37)  # PPD Table 2, of 40


@dataclass(frozen=True)
class Document:
    """Tokens of a text. Heads learn, and are judged, on the prediction of ``tokens[first:]``; the tokens before are prompt."""

    tokens: Int[Tensor, " n"]
    first: int = 1

    @property
    def labels(self) -> Int[Tensor, " m"]:
        return self.tokens[self.first :]


HeadData = tuple[Sequence[Document], Sequence[Document]]  # the documents to learn from and those held out


def train_zoo_heads(recipe: HeadRecipe, folder: Path, source: str, position: int = 0) -> None:
    """Train the heads of a zoo model in ``folder``, which may hold a checkpoint, on the corpus that the model learned from."""
    rows = read_corpus(folder_of(recipe.corpus, source))
    pairs = map(rows.row, range(len(rows)))
    documents = [Document(torch.cat(pair).long(), max(1, len(pair[0]))) for pair in pairs]
    cut = recipe.corpus.num_held_out
    data, identity = (documents[cut:], documents[:cut]), digest(recipe, source)
    with one_thread():
        stack = stack_for(read_network(folder_of(recipe.teacher, source)))
        heads, evaluations, spent = train_heads(
            stack, recipe.layers, recipe.training, data, folder, identity=identity, seed=recipe.seed, position=position
        )
    named = {"name": f"{ZOO}{recipe.teacher.name}", "revision": digest(recipe.teacher, source)}
    save_trained(folder, heads, evaluations, {"recipe": asdict(recipe), "base": named, "source": source}, spent)
    tqdm.write(table(evaluations))


def train_heads(
    stack: Stack,
    layers: Sequence[int],
    training: HeadTraining,
    data: HeadData,
    folder: Path,
    *,
    identity: str,
    seed: int = 0,
    position: int = 0,
) -> tuple[nn.ParameterDict, list[Evaluation], Spent]:
    """Return the heads, their evaluations (the first before any update: "N"), and the time it took.

    Resumes from a checkpoint in ``folder`` whose ``identity`` is the same.

    Raises:
        UsageError: for layers or a model that cannot be, or a checkpoint that cannot be read or is another training's.
    """
    heads = initial_heads(stack, layers)
    objective, steps = next_choice(stack, training, data, seed)
    course = Course(
        name="heads",
        identity=identity,
        steps=steps,
        learning_rate=training.learning_rate,
        rate=lambda step: rate_share(step, steps, training.warmup_frac),
        seed=seed,
        evaluated_after=evenly(steps) | {0},
    )
    evaluations, spent = run_steps(course, heads, heads_optimizer(training, heads), objective, folder, position=position)
    return heads, evaluations, spent


def paper_layers(num_layers: int) -> tuple[int, ...]:
    """The paper's fractions of depth as layers of this model, those that are intermediate."""
    return tuple(sorted({scaled_layer(layer, num_layers) for layer in PAPER_LAYERS if num_layers > 1}))


def initial_heads(stack: Stack, layers: Sequence[int]) -> nn.ParameterDict:
    """Warm start: every head [V, D] is a copy of the model's own, in fp32 so that small updates are not lost.

    Raises:
        UsageError: for a layer that is not intermediate, or a model that is not decoder-only.
    """
    if stack.is_encoder_decoder:
        kind = stack.model.config.model_type
        raise UsageError(f"target of model type {kind!r}: it is an encoder-decoder; expected a decoder-only model")
    for layer in layers:
        if not 1 <= layer < stack.num_layers:
            deepest = stack.num_layers - 1
            raise UsageError(f"layer {layer}: expected one from 1 to {deepest}, the target has {stack.num_layers} layers")
    own = stack.head_weight.t().float()
    return nn.ParameterDict({str(layer): nn.Parameter(own.clone().contiguous()) for layer in layers})


def next_choice(stack: Stack, training: HeadTraining, data: HeadData, seed: int) -> tuple[Objective, int]:
    """Cross-entropy of every head with its labels, summed over heads, and the number of steps.

    Documents come in a new order each epoch; which ones a step sees depends on the seed and the step alone.
    """
    session = ModelSession(stack)
    stack.model.requires_grad_(False)  # frozen: a family may have weights of its own between the layers and the head
    documents, held_out = (pieces(part, stack, training) for part in (data[0][: training.max_documents], data[1]))
    size = training.batch_size
    per_epoch = -(-len(documents) // size)

    def batch(step: int) -> list[Document]:
        epoch, index = divmod(step, per_epoch)
        order = torch.randperm(len(documents), generator=generator_of(seed, epoch)).tolist()
        return [documents[i] for i in order[index * size : (index + 1) * size]]

    def loss(heads: Any, batch: Sequence[Document], step: int, generator: torch.Generator) -> Float[Tensor, ""]:
        return heads_loss(session, heads, batch, training.labels == "final")

    def judge(heads: Any) -> Evaluation:
        return evaluate(session, heads, held_out)

    objective = Objective(batch=batch, loss=loss, evaluate=judge, show=show_means)
    return objective, training.epochs * per_epoch


def heads_loss(
    session: ModelSession, heads: nn.ParameterDict, documents: Sequence[Document], learns_final: bool
) -> Float[Tensor, ""]:
    """Go backward document by document and head by head; return the mean loss of a position and head (nats), detached."""
    stack, count = session.stack, sum(len(document.labels) for document in documents)
    total = torch.zeros((), device=stack.device)
    for document in documents:
        states = layer_states(session, document, tuple(map(int, heads)))
        labels = final_choices(stack, states) if learns_final else document.labels.to(stack.device)
        for layer, weight in heads.items():
            loss = cross_entropy(head_logits(stack, states[int(layer)], weight), labels, reduction="sum") / count
            loss.backward()
            total += loss.detach()
    return total / len(heads)


def pieces(documents: Sequence[Document], stack: Stack, training: HeadTraining) -> list[Document]:
    """Documents cut to what the training and the model allow; pieces without a label go."""
    limit = min(training.max_length, stack.position_limit or training.max_length)
    cut = [
        Document(tokens, max(1, document.first - index * limit))
        for document in documents
        for index, tokens in enumerate(document.tokens.split(limit))
    ]
    return [piece for piece in cut if piece.first < len(piece.tokens)]


def layer_states(session: ModelSession, document: Document, layers: Sequence[int]) -> dict[int, Float[Tensor, "1 m D"]]:
    """Hidden states of the frozen model, from which the labels are predicted, after each of ``layers`` layers and after all."""
    tokens = document.tokens[None, :-1].to(session.device)
    session.prefill(Inputs(((int(document.tokens[0]),),)))  # caches nothing: the last token of a prompt is pending
    hidden, before, states = session.embed(tokens), 0, {}
    for layer in (*sorted(layers), session.num_layers):
        hidden = session.run_layers(hidden, before, layer)
        states[layer], before = hidden[:, document.first - 1 :].clone(), layer
    return states


def final_choices(stack: Stack, states: Mapping[int, Float[Tensor, "1 m D"]]) -> Int[Tensor, " m"]:
    """The token that the final layer finds most likely, per position."""
    return stack.head(states[stack.num_layers])[0].argmax(-1)


def head_logits(stack: Stack, hidden: Float[Tensor, "1 n D"], weight: Float[Tensor, "V D"]) -> Float[Tensor, "n V"]:
    """The logits of a trained head, in fp32."""
    return stack.head(hidden, weight.to(stack.dtype).t())[0].float()


@torch.no_grad()
def evaluate(session: ModelSession, heads: nn.ParameterDict, documents: Sequence[Document]) -> Evaluation:
    """Judge every head on every label of ``documents``, the model reading the true text.

    By layer, ``loss_nats`` is the cross-entropy with the text's next tokens, ``match_frac`` the share of positions at which
    head and final layer find the same token most likely.
    """
    stack, count = session.stack, sum(len(document.labels) for document in documents)
    losses, matches = ({int(layer): 0.0 for layer in heads} for _ in range(2))
    for document in documents:
        states, labels = layer_states(session, document, tuple(losses)), document.labels.to(stack.device)
        final = final_choices(stack, states)
        for layer, weight in heads.items():
            logits = head_logits(stack, states[int(layer)], weight)
            losses[int(layer)] += float(cross_entropy(logits, labels, reduction="sum")) / count
            matches[int(layer)] += float((logits.argmax(-1) == final).sum()) / count
    return {"loss_nats": losses, "match_frac": matches}


def show_means(evaluations: Sequence[Evaluation]) -> str:
    """One line: means over the layers, now and before training, and the layer that gained least."""
    before, now = evaluations[0], evaluations[-1]
    gains = {layer: now["match_frac"][layer] - before["match_frac"][layer] for layer in now["match_frac"]}
    least = min(gains, key=lambda layer: gains[layer])
    return (
        f"loss {fmean(now['loss_nats'].values()):.3f} (before {fmean(before['loss_nats'].values()):.3f}), "
        f"match rate {fmean(now['match_frac'].values()):.4f} (before {fmean(before['match_frac'].values()):.4f}), "
        f"least gain {gains[least]:+.4f} at layer {least}"
    )


def save_trained(
    folder: Path, heads: nn.ParameterDict, evaluations: Sequence[Evaluation], facts: Mapping[str, Any], spent: Spent
) -> None:
    """Write heads.safetensors, and recipe.json with each layer's match rate and loss before ("N") and after ("Y")."""
    save_heads({int(layer): weight.cpu() for layer, weight in heads.items()}, folder)
    stages = {"_before": evaluations[0], "": evaluations[-1]}
    by_layer = {
        layer: {f"{name}{stage}": found[name][layer] for name in ("match_frac", "loss_nats") for stage, found in stages.items()}
        for layer in sorted(evaluations[0]["match_frac"])
    }
    finish(folder, {**facts, "held_out": by_layer, "evaluations": list(evaluations)}, spent)


def table(evaluations: Sequence[Evaluation]) -> str:
    """Per layer, on held-out text: match rate and loss before training (N) and after (Y). Keys may be JSON's strings."""
    first, last = evaluations[0], evaluations[-1]
    lines = ["layer  match rate N       Y    gain   loss N       Y   (held-out text, nats a token)"]
    for layer in sorted(first["match_frac"], key=int):
        before, after = first["match_frac"][layer], last["match_frac"][layer]
        loss = f"{first['loss_nats'][layer]:8.3f} {last['loss_nats'][layer]:7.3f}"
        lines.append(f"{int(layer):5d} {before:13.4f} {after:7.4f} {after - before:+7.4f} {loss}")
    return "\n".join(lines)
