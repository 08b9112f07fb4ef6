"""Any decoder-only text model, by its own forward pass in transformers: for families that have no stack of their own.

The model's layers, masks and positions are transformers'; its keys and values lie in the session's cache, which can rewind. All
layers run at once. Rows whose lengths differ run one by one, since a family's own masks take all rows to be equally long.
"""

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from kernels.products.few_rows import TORCH, Choice
from methods.errors import InputError
from methods.models.base import Frame, Stack
from methods.models.weights import Product

LIMITS = ("max_position_embeddings", "n_positions")  # as configurations name the most positions
BODIES = ("model", "transformer")  # where a base_model_prefix names nothing
TRIED = 2  # tokens of the pass that shows what the layers cache


class GeneralStack(Stack):
    """A decoder-only model that transformers runs.

    ``hidden`` of its sessions lies behind the final norm, unlike that of other stacks.

    Raises:
        InputError: a model that keeps a state in place of keys and values, which cannot be rewound; or that caches nothing.
    """

    def __init__(self, model: Any, choice: Choice = TORCH) -> None:
        kind, config = model.config.model_type, model.config.get_text_config()
        if getattr(model, "_is_stateful", False):
            raise InputError(
                f"model type {kind!r}: it keeps a running state, which cannot be rewound; choose one with attention"
            )
        super().__init__(model, choice)
        limits = (getattr(config, name, None) for name in LIMITS)
        self.position_limit = next((limit for limit in limits if limit is not None), None)
        self._twin = _twin(model, choice)
        name = next((name for name in (model.base_model_prefix, *BODIES) if name and hasattr(model, name)), None)
        if name is None:
            raise InputError(
                f"model type {kind!r}: its layers are not apart from its head; expected one of {', '.join(BODIES)}"
            )
        self._body, (self._shell, self._given) = getattr(self._twin, name), _shell_of(self._twin, name)
        self._embedding = self._twin.get_input_embeddings()
        cache = DynamicCache()
        with torch.no_grad():
            tokens = torch.ones(1, TRIED, dtype=torch.long, device=self.device)
            found = self._body(input_ids=tokens, past_key_values=cache, use_cache=True)
        layers: list[Any] = [layer for layer in cache.layers if getattr(layer, "is_initialized", False)]
        shapes = [(layer.keys.shape, layer.values.shape) for layer in layers]
        if not shapes or any(shape[2] != TRIED for pair in shapes for shape in pair):
            raise InputError(f"model type {kind!r}: it caches no keys and values of its tokens, so it cannot be rewound")
        self._output, self.num_layers = type(found), config.num_hidden_layers
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = max(shape[1] for pair in shapes for shape in pair)
        self.head_dim = max(shape[3] for pair in shapes for shape in pair)
        self.layers = [()] * self.num_layers

    def embed(self, tokens: Int[Tensor, "B n"], frame: Frame) -> Float[Tensor, "B n D"]:
        return self._embedding(tokens)

    def run_by_torch(self, hidden: Float[Tensor, "B n D"], first: int, last: int, frame: Frame) -> Float[Tensor, "B n D"]:
        kind = self.model.config.model_type
        if (first, last) != (0, self.num_layers):
            raise InputError(
                f"model type {kind!r}: its layers run together; this method runs some of them alone: choose another"
            )
        if frame.allowed is not None:
            raise InputError(
                f"model type {kind!r}: it reads a text in its order; this method reads branches at once: choose another"
            )
        if frame.start is not None:
            return self._pass(hidden, frame.start, frame.keys, frame.values, frame.slots)
        rows = []
        for row, start in enumerate(frame.positions()[:, 0].tolist()):
            one, new = slice(row, row + 1), slice(start, start + frame.num_new)
            keys, values = ([layer[one] for layer in layers] for layers in (frame.keys, frame.values))
            rows.append(self._pass(hidden[one], start, keys, values, [slot[one, new] for slot in frame.slots]))
        return torch.cat(rows)

    def _pass(
        self,
        hidden: Float[Tensor, "B n D"],
        start: int,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        slots: Sequence[Tensor],
    ) -> Float[Tensor, "B n D"]:
        """Run all layers over rows that are equally long. Behind the last position is padding, which comes back as zeros."""
        num_new = hidden.shape[1]
        fits = num_new if self.position_limit is None else min(num_new, self.position_limit - start)
        end = start + fits
        layers: list[Any] = [
            _Layer(start, own[:, :, :end], read[:, :, :end], slot[:, :fits])
            for own, read, slot in zip(keys, values, slots, strict=True)
        ]
        made = self._body(inputs_embeds=hidden[:, :fits], past_key_values=Cache(layers=layers), use_cache=True)
        return F.pad(made.last_hidden_state, (0, 0, 0, num_new - fits))

    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "D V"] | None = None) -> Float[Tensor, "B n V"]:
        if weight is not None:
            kind = self.model.config.model_type
            raise InputError(
                f"model type {kind!r}: no head but its own can be put on it; choose a method without trained heads"
            )
        self._given.output = self._output(last_hidden_state=hidden)
        return self._shell(inputs_embeds=hidden, use_cache=False).logits


class _Layer(CacheLayerMixin):
    """A layer's part of a session's cache for one pass, as transformers asks for it.

    ``keys`` and ``values`` [B, K, end, head_dim] end where the pass ends; ``slot`` [B, n, 2 K, head_dim] takes what is new. A
    layer may have fewer heads, and narrower ones.
    """

    is_sliding = False

    def __init__(self, start: int, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        super().__init__()
        self.length, self.is_initialized = start, True
        self._cached, self._slot = (keys, values), slot

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.length += key_states.shape[2]
        parts = (key_states, value_states)
        for part, slot in zip(parts, self._slot.chunk(2, 2), strict=True):
            slot[:, :, : part.shape[1], : part.shape[3]].copy_(part.transpose(1, 2))
        keys, values = (
            cached[:, : part.shape[1], :, : part.shape[3]] for cached, part in zip(self._cached, parts, strict=True)
        )
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class _Given(nn.Module):
    """In place of a model's layers: returns the hidden states that they gave before, on which the model puts its head."""

    output: Any = None

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.output


def _twin(model: Any, choice: Choice) -> Any:
    """Return a model with the same weights, whose linear modules multiply few rows as the choice says."""
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    twin = deepcopy(model, shared)
    for module in twin.modules():
        if type(module) is nn.Linear and choice.takes(module.weight.detach().t()):
            bias = None if module.bias is None else module.bias.detach()
            vars(module)["forward"] = _by_rows(Product(module.weight.detach().t(), bias, choice))
    return twin


def _by_rows(product: Product) -> Any:
    def forward(hidden: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        return product(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)

    return forward


def _shell_of(model: Any, body: str) -> tuple[Any, _Given]:
    """Return the model without its layers: what it does with their hidden states, whatever its family does there."""
    shell, given = copy(model), _Given()
    object.__setattr__(given, "decoder", given)  # some families reach through to it
    shell._modules = {**model._modules, body: given}
    return shell, given
