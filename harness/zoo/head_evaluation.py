"""What heads are judged on: the hidden states that a frozen model has for a text, and how often a head agrees with its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness.zoo.descriptions import HeadTraining
from methods.models.base import Stack
from methods.session import ModelSession
from methods.types import Inputs


@dataclass(frozen=True)
class Document:
    """Tokens of a text. Heads learn, and are judged, on the prediction of ``tokens[first:]``; what is before is prompt."""

    tokens: Int[Tensor, "n"]
    first: int = 1

    @property
    def labels(self) -> Int[Tensor, "m"]:
        return self.tokens[self.first :]


@dataclass(frozen=True)
class Evaluation:
    """Heads on held-out text after ``step`` updates, by layer, the model reading the true text.

    ``loss_nats`` is the cross-entropy with the text's next tokens; ``match_frac`` the share of positions at which head and
    final layer find the same token most likely.
    """

    step: int
    loss_nats: dict[int, float]
    match_frac: dict[int, float]

    @classmethod
    def from_json(cls, item: dict[str, Any]) -> "Evaluation":
        """JSON's keys are strings."""
        loss, match = ({int(layer): value for layer, value in item[name].items()} for name in ("loss_nats", "match_frac"))
        return cls(item["step"], loss, match)


@dataclass(frozen=True)
class HeadData:
    """The documents to learn from and those held out."""

    seen: Sequence[Document]
    held_out: Sequence[Document]


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


def final_choices(stack: Stack, states: Mapping[int, Float[Tensor, "1 m D"]]) -> Int[Tensor, "m"]:
    """The token that the final layer finds most likely, per position."""
    return stack.head(states[stack.num_layers])[0].argmax(-1)


def head_logits(stack: Stack, hidden: Float[Tensor, "1 n D"], weight: Float[Tensor, "V D"]) -> Float[Tensor, "n V"]:
    """What a trained head says, in fp32."""
    return stack.head(hidden, weight.to(stack.dtype).t())[0].float()


@torch.no_grad()
def evaluate(session: ModelSession, heads: nn.ParameterDict, documents: Sequence[Document], step: int) -> Evaluation:
    """Every head on every label of ``documents``."""
    stack, count = session.stack, sum(len(document.labels) for document in documents)
    losses, matches = ({int(layer): 0.0 for layer in heads} for _ in range(2))
    for document in documents:
        states, labels = layer_states(session, document, tuple(losses)), document.labels.to(stack.device)
        final = final_choices(stack, states)
        for layer, weight in heads.items():
            logits = head_logits(stack, states[int(layer)], weight)
            losses[int(layer)] += float(cross_entropy(logits, labels, reduction="sum")) / count
            matches[int(layer)] += float((logits.argmax(-1) == final).sum()) / count
    return Evaluation(step, losses, matches)


def progress(evaluations: Sequence[Evaluation], num_steps: int) -> str:
    """One line: means over the layers, now and before training, and the layer that gained least."""
    before, now = evaluations[0], evaluations[-1]
    least = min(now.match_frac, key=lambda layer: now.match_frac[layer] - before.match_frac[layer])
    gain = now.match_frac[least] - before.match_frac[least]
    return (
        f"heads {now.step}/{num_steps}: held-out loss {_mean(now.loss_nats):.3f} (before {_mean(before.loss_nats):.3f}), "
        f"match rate {_mean(now.match_frac):.4f} (before {_mean(before.match_frac):.4f}), "
        f"least gain {gain:+.4f} at layer {least}"
    )


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)
