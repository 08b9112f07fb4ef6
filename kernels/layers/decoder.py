"""A decoder in compiled calls: a pass through layers and head, a round's drafts, or a pass with its verdict, each in one call.

A pass over few rows spends most of its time on calls of small operations, and torch's attention takes half again as long for
six queries as for one. The compiled loop (decoder.h) does all of it: norms, attention and activations, and between them
products that read a weight once (``kernels.products.matrix``). So are prompts read, and encoders run, whose tokens see all. A
row's result does not depend on how many rows it is computed with, nor on the number of threads, to the bit.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels import native
from kernels.inputs import InputError, SamplingSpec
from kernels.products.matrix import FUNCTIONS, ProductArguments, product_arguments
from kernels.products.narrow import Narrow
from kernels.verify import fused_cpu
from kernels.verify.interface import Proposal, check_shapes, checked
from kernels.verify.reference import Sampling

SOURCE = Path(__file__).with_name("decoder.cpp")
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu": 2, "relu": 3}
# Room for as many probabilities of target and draft, which is 1 where nothing is drawn.
PROBABILITIES: dict[torch.dtype, Callable[[int], tuple[Any, Any]]] = {
    torch.float32: lambda count: ((ctypes.c_float * count)(), (ctypes.c_float * count)(*[1.0] * count)),
    torch.float64: lambda count: ((ctypes.c_double * count)(), (ctypes.c_double * count)(*[1.0] * count)),
}
Weight = tuple[Tensor, Tensor | None, Narrow | None]  # [d_in, d_out], a bias [d_out], and what is read in place of the weight


@dataclass(frozen=True)
class NormWeights:
    """A norm of rows: by mean and deviation where it has a shift, else by the root mean square."""

    gain: Float[Tensor, "D"]
    shift: Float[Tensor, "D"] | None
    epsilon: float


@dataclass(frozen=True)
class DecoderLayer:
    """One layer's weights as ``rows @ weight + bias``, queries' heads first, a gate before what it multiplies.

    ``norms`` are those of attention, of attention to the source where there is one, and of feed-forward; ``source`` are the
    weights of the source's queries and of what its attention gives; ``scale`` multiplies the text's and the source's queries.
    What attention and feed-forward give goes through the norms ``behind`` them, and times ``share``, to the sum; queries and
    keys go through ``head_norms``, each head by itself, or all at once where gains are as wide as all heads. ``turns``:
    queries and keys are turned by their positions, where the model has such. ``parallel``: feed-forward reads what attention
    reads, the sum before both.
    """

    norms: tuple[NormWeights | None, ...]
    qkv: Weight
    out: Weight
    source: tuple[Weight, Weight] | None
    up: Weight
    down: Weight
    scale: float
    head_norms: tuple[NormWeights, NormWeights] | None = None
    behind: tuple[NormWeights, NormWeights] | None = None
    share: float = 1.0
    turns: bool = True
    parallel: bool = False


@dataclass(frozen=True)
class DecoderShape:
    """What all layers share.

    ``norms_behind``: norms stand behind the sum, not before attention and feed-forward. ``biases`` are added to the text's
    scores by how far a key is behind its query, ahead - distances + 1..ahead; those beyond have the first one, or the last.
    ``sees_all``: a token looks at those behind it, too, in a pass over the whole text. ``turned``: as many of a head's first
    numbers turn; None: all.
    ``interleaved``: a head's query, key and value lie side by side in what the first product gives, not those of all heads; as
    many of each, and no norms of them.
    """

    heads: int
    key_heads: int
    head_size: int
    activation: str
    gated: bool = False
    norms_behind: bool = False
    sees_all: bool = False
    biases: Float[Tensor, "H distances"] | None = None
    ahead: int = 0
    turned: int | None = None
    interleaved: bool = False


@dataclass(frozen=True)
class DecoderEnds:
    """What stands before and behind the layers.

    A token's embedding times ``scale`` plus its position's row of ``positions``, behind whose end all have the last, goes
    through ``first_norm`` and in; what the last layer gives goes through ``norm`` to the head.
    """

    embedding: Float[Tensor, "V D"]
    norm: NormWeights | None
    scale: float = 1.0
    positions: Float[Tensor, "P D"] | None = None
    first_norm: NormWeights | None = None


class _Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("shift", ctypes.c_void_p), ("epsilon", ctypes.c_double))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("attention_norm", "source_norm", "feed_norm")),
        *((name, _Norm) for name in ("query_norm", "key_norm", "attention_behind", "feed_behind")),
        *((name, ProductArguments) for name in ("qkv", "out", "query", "source_out", "up", "down")),
        *((name, ctypes.c_double) for name in ("scale", "share")),
        *((name, ctypes.c_long) for name in ("turns", "norms_all", "parallel")),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("width", "heads", "key_heads", "head_size", "turned", "interleaved")),
        *(
            (name, ctypes.c_long)
            for name in ("activation", "gated", "norms_behind", "attends_to_source", "sees_all", "distances", "ahead")
        ),
        ("biases", ctypes.c_void_p),
    )


class _Ends(ctypes.Structure):
    _fields_ = (
        ("embedding", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("token_stride", "number_stride")),
        ("scale", ctypes.c_double),
        ("positions", ctypes.c_void_p),
        ("places", ctypes.c_long),
        *((name, _Norm) for name in ("first_norm", "norm")),
        ("head", ProductArguments),
    )


class _Memory(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_long) for name in ("layer_stride", "row_stride", "head_stride", "place_stride", "places")),
        ("mask", ctypes.c_void_p),
        ("mask_stride", ctypes.c_long),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("batch", "num_new", "position", "window", "new_row_stride")),
        ("starts", ctypes.c_void_p),
        ("text", _Memory),
        ("source", _Memory),
        *((name, ctypes.c_void_p) for name in ("new_keys", "new_values", "rotary", "hidden")),
        ("caches_only", ctypes.c_long),
    )


class _Drafting(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("num_fed", "count", "size")),
        *((name, ctypes.c_void_p) for name in ("fed", "columns", "embedded", "uniforms")),
        ("temperature", ctypes.c_double),
        ("top_k", ctypes.c_long),
        ("top_p", ctypes.c_double),
        ("threads", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("tokens", "logits", "log_sum_exp")),
    )


@dataclass(frozen=True, slots=True)
class Cached:
    """What the layers of a pass look at: the ``text``, what is new among it, keys' heads first.

    ``new`` begins where the first new token is stored; where rows differ it is all of the text, and tokens are stored by
    position. ``source`` has keys and values of all layers, and a ``mask`` that is added to scores. ``allowed`` is added to the
    scores of the text: it hides what a row's one new token does not see, or all tokens of a row that see all. A token looks at
    ``window`` of the text's tokens, itself the last; None: at all. With ``caches_only`` the last layer ends with its keys and
    values, and what comes out means nothing.
    """

    text: Float[Tensor, "L B S H2 head_size"]
    new: Float[Tensor, "L B _ H2 head_size"]
    source: Float[Tensor, "all B K2 T head_size"] | None = None
    mask: Float[Tensor, "#B 1 1 T"] | None = None
    rotary: Float[Tensor, "P 2 1 turned"] | None = None
    allowed: Float[Tensor, "B S"] | None = None
    window: int | None = None
    caches_only: bool = False


@dataclass(frozen=True)
class Drafted:
    """A vocabulary that is drafted in place of the model's own: of each token the head's column, below 0 for one that is never
    drafted, and the model's token that is read behind it."""

    columns: Int[Tensor, " V"]
    embedded: Int[Tensor, " V"]


class VerifiedRow(NamedTuple):
    """A row's verdict on the host, as ``Verdict`` has it, and its drafts."""

    num_accepted: int
    next_token: int
    drafted: list[int]
    target_probs: list[float]
    draft_probs: list[float]


class DecoderLayers:
    """Layers of one model, whose weights are in fp32 or fp64 on a CPU, with contiguous rows."""

    def __init__(self, library: ctypes.CDLL, layers: Sequence[DecoderLayer], shape: DecoderShape) -> None:
        self._described, self._dtype = (layers, shape), layers[0].qkv[0].dtype
        at, number, threads = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        self._run = self._function(library, "run", (at, at, number, at, threads))
        self._point()

    def _function(self, library: ctypes.CDLL, name: str, types: Sequence[Any]) -> Any:
        function = getattr(library, FUNCTIONS[self._dtype].replace("multiply", name))
        function.argtypes, function.restype = types, None
        return function

    def _point(self) -> None:
        """Write down where everything lies."""
        self._tensors: list[Tensor] = []
        self._point_at_all()
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]

    def _point_at_all(self) -> None:
        layers, shape = self._described
        self._layers = (_Layer * len(layers))(*(self._layer(layer) for layer in layers))
        biases = shape.biases
        self._shape = _Shape(
            layers[0].qkv[0].shape[0], shape.heads, shape.key_heads, shape.head_size,
            shape.head_size if shape.turned is None else shape.turned, shape.interleaved,
            ACTIVATIONS[shape.activation], shape.gated, shape.norms_behind, layers[0].source is not None, shape.sees_all,
            0 if biases is None else biases.shape[1], shape.ahead, self._address(biases),
        )  # fmt: skip

    def follow(self) -> None:
        """A model that is handed to another process moves to shared memory: look where everything lies now.

        Sessions do so as a text begins, and calls of a part each time. Whole passes ask the embeddings and both ends alone,
        which move with the model; to ask every tensor takes a twentieth of a small model's pass.
        """
        if list(map(Tensor.data_ptr, self._tensors)) != self._addresses:
            self._point()

    def run(
        self, hidden: Float[Tensor, "B n D"], first: int, last: int, cached: Cached, starts: int | Int[Tensor, "B n"]
    ) -> Float[Tensor, "B n D"]:
        """Run layers first..last-1 on ``n`` new tokens of every row, whose keys and values they store.

        ``cached`` holds these layers' text, and the source of all layers. ``starts`` is the position of the first new token in
        every row, or the positions of all.
        """
        self.follow()
        self._check_hidden(hidden)
        out = hidden.clone(memory_format=torch.contiguous_format)
        arguments, _held = self._pass(hidden.shape[0], hidden.shape[1], starts, first, cached, out)
        shape, passing = map(ctypes.addressof, (self._shape, arguments))
        self._run(shape, self._layers_at(first), last - first, passing, torch.get_num_threads())
        return out

    def _check_hidden(self, hidden: Float[Tensor, "*rows D"]) -> None:
        if hidden.dtype != self._dtype or hidden.shape[-1] != self._shape.width:
            raise InputError(
                f"hidden states {hidden.dtype} {list(hidden.shape)}: expected {self._dtype} and {self._shape.width} numbers a "
                "token, as the model gives them"
            )

    def _layers_at(self, first: int) -> int:
        return ctypes.addressof(self._layers) + first * ctypes.sizeof(_Layer)

    def _pass(
        self, batch: int, num_new: int, starts: int | Int[Tensor, "B n"], first: int, cached: Cached, hidden: Tensor | None
    ) -> tuple[_Pass, tuple[Tensor | None, ...]]:
        """Return a pass from layer ``first`` on, and the masks and the positions that it points to."""
        heads, allowed, mask = self._shape.key_heads, cached.allowed, cached.mask
        if cached.text.shape[1] != batch:
            raise InputError(f"{batch} rows of tokens: expected {cached.text.shape[1]}, as many as are cached")
        if cached.rotary is not None and cached.rotary.shape[3] != self._shape.turned:
            raise InputError(f"{cached.rotary.shape[3]} numbers of a head turn: expected {self._shape.turned}, as described")
        text = self._memory(cached.text, 3, 2, heads)
        if allowed is not None:
            if (num_new != 1 and not self._shape.sees_all) or tuple(allowed.shape) != (batch, text.places):
                raise InputError(
                    f"a mask {list(allowed.shape)} of {num_new} new tokens a row: expected [{batch}, {text.places}], and one "
                    "token a row, or tokens that see all"
                )
            allowed = allowed.to(self._dtype).contiguous()
            text.mask, text.mask_stride = allowed.data_ptr(), text.places
        source = _Memory() if cached.source is None else self._memory(cached.source[first:], 2, 3, self._shape.heads)
        if mask is not None:
            mask = mask.contiguous()
            source.mask, source.mask_stride = mask.data_ptr(), mask.shape[-1] if mask.shape[0] > 1 else 0
        new = cached.new.data_ptr()
        position, positions = (starts, None) if isinstance(starts, int) else (0, starts.long().contiguous())
        positions_at = None if positions is None else positions.data_ptr()
        arguments = _Pass(
            batch, num_new, position, cached.window or 0, cached.new.stride(1), positions_at, text, source,
            new, new + text.values - text.keys,
            None if cached.rotary is None else cached.rotary.data_ptr(), None if hidden is None else hidden.data_ptr(),
            cached.caches_only,
        )  # fmt: skip
        return arguments, (allowed, mask, positions)

    def _memory(self, states: Tensor, heads_at: int, places_at: int, heads: int) -> _Memory:
        """Describe keys and values, whose heads and places are dimensions of the states: layers and rows come first."""
        at, strides = states.data_ptr(), states.stride()
        return _Memory(
            at, at + heads * strides[heads_at] * self._dtype.itemsize,
            strides[0], strides[1], strides[heads_at], strides[places_at], states.shape[places_at], None, 0,
        )  # fmt: skip

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        tensor = tensor.to(self._dtype).contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()

    def _norm(self, norm: NormWeights | None) -> _Norm:
        return _Norm() if norm is None else _Norm(self._address(norm.gain), self._address(norm.shift), norm.epsilon)

    def _product(self, weight: Weight | None) -> ProductArguments:
        if weight is None:
            return ProductArguments()
        arguments, tensors = product_arguments(*weight)
        self._tensors += tensors
        return arguments

    def _layer(self, layer: DecoderLayer) -> _Layer:
        attention, *source, feed = map(self._norm, layer.norms)
        head_norms = layer.head_norms or (None, None)
        others = map(self._norm, (*head_norms, *(layer.behind or (None, None))))
        weights = (layer.qkv, layer.out, *(layer.source or (None, None)), layer.up, layer.down)
        norms_all = head_norms[0] is not None and head_norms[0].gain.numel() > self._described[1].head_size
        return _Layer(
            attention, *(source or [_Norm()]), feed, *others, *map(self._product, weights), layer.scale, layer.share,
            layer.turns, norms_all, layer.parallel,
        )  # fmt: skip


class Decoder(DecoderLayers):
    """All of one model: its layers, and what stands before and behind them."""

    def __init__(
        self, library: ctypes.CDLL, layers: Sequence[DecoderLayer], shape: DecoderShape, ends: DecoderEnds, head: Weight
    ) -> None:
        self._ends_described = ends, head
        self._drafted: Drafted | None = None  # the last one that was looked at
        super().__init__(library, layers, shape)
        at, number, threads = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        self._whole = self._function(library, "pass", (at, at, number, at, at, at, at, threads))
        self._embed = self._function(library, "embed", (at, at, number, number, number, at, number, at))
        self._head = self._function(library, "head", (at, at, number, number, at, threads))
        self._draft = self._function(library, "draft", (at, at, number, at, at, at))
        self._verify = self._function(library, "verify", (at, at, number, at, at, at, at, at, at, threads))

    def _point_at_all(self) -> None:
        super()._point_at_all()
        ends, head = self._ends_described
        self._tensors.append(ends.embedding)
        self._ends = _Ends(
            ends.embedding.data_ptr(), *ends.embedding.stride(), ends.scale,
            self._address(ends.positions), 0 if ends.positions is None else len(ends.positions),
            self._norm(ends.first_norm), self._norm(ends.norm), self._product(head),
        )  # fmt: skip

    def _follow_ends(self) -> None:
        ends = self._tensors[0], self._tensors[-1], self._ends_described[0].embedding
        if tuple(map(Tensor.data_ptr, ends)) != (self._addresses[0], self._addresses[-1], self._ends.embedding):
            self._point()

    def embed(self, tokens: Int[Tensor, "B n"], starts: int | Int[Tensor, "B n"]) -> Float[Tensor, "B n D"]:
        """Return what goes into the first layer. ``starts`` is the position of every row's first token, or those of all.

        Raises:
            IndexError: a token without an embedding.
        """
        self.follow()
        tokens, width = self._checked(tokens), self._shape.width
        hidden = torch.empty((*tokens.shape, width), dtype=self._dtype)
        first, positions = (starts, None) if isinstance(starts, int) else (0, starts.long().contiguous())
        positions_at = None if positions is None else positions.data_ptr()
        ends, (batch, num_new) = ctypes.addressof(self._ends), tokens.shape
        self._embed(ends, tokens.data_ptr(), batch, num_new, first, positions_at, width, hidden.data_ptr())
        return hidden

    @property
    def drafts_its_own(self) -> bool:
        """Whether every token of the head has an embedding, so that what was drawn can be read."""
        return self._ends.head.width <= self._ends_described[0].embedding.shape[0]

    def _checked(self, tokens: Int[Tensor, "B n"]) -> Int[Tensor, "B n"]:
        """Return tokens as the calls read them."""
        self._check_tokens(tokens.flatten().tolist())
        return tokens.long().contiguous()

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        known = self._ends_described[0].embedding.shape[0]
        if not 0 <= min(tokens) <= max(tokens) < known:
            raise IndexError(f"tokens {list(tokens)}: expected numbers from 0 to {known - 1}, of which there are embeddings")

    def _check_drafted(self, drafted: Drafted) -> None:
        """Refuse a vocabulary whose columns the head lacks, or whose tokens have no embedding: the loop would read on."""
        known = {"columns": (-1, self._ends.head.width), "embedded": (0, self._ends_described[0].embedding.shape[0])}
        for name, (least, end) in known.items():
            numbers = getattr(drafted, name)
            if numbers.dtype != torch.long or not numbers.is_contiguous() or len(numbers) != len(drafted.columns):
                raise InputError(f"{name} of a drafted vocabulary: expected {len(drafted.columns)} contiguous int64 numbers")
            read = numbers if name == "columns" else numbers[drafted.columns >= 0]  # others are never drawn
            if len(read) and not least <= int(read.min()) <= int(read.max()) < end:
                raise IndexError(f"{name} of a drafted vocabulary: expected numbers from {least} to {end - 1}")

    def head(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """Return the logits of what the last layer gave."""
        self.follow()
        self._check_hidden(hidden)
        hidden, size = hidden.contiguous(), self._ends.head.width
        logits = torch.empty((*hidden.shape[:-1], size), dtype=self._dtype)
        count, width = logits.numel() // size, hidden.shape[-1]
        ends = ctypes.addressof(self._ends)
        self._head(ends, hidden.data_ptr(), count, width, logits.data_ptr(), torch.get_num_threads())
        return logits

    def whole(
        self, tokens: Int[Tensor, "B n"], num_layers: int, cached: Cached, starts: int | Int[Tensor, "B n"]
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n V"]]:
        """Embed tokens, run as many first layers, and return what these gave with its logits: the three calls in one.

        Raises:
            IndexError: a token without an embedding.
        """
        self._follow_ends()
        tokens = self._checked(tokens)
        hidden = torch.empty((*tokens.shape, self._shape.width), dtype=self._dtype)
        logits = torch.empty((*tokens.shape, self._ends.head.width), dtype=self._dtype)
        batch, num_new = tokens.shape
        arguments, _held = self._pass(batch, num_new, starts, 0, cached, hidden)
        shape, passing, ends = map(ctypes.addressof, (self._shape, arguments, self._ends))
        self._whole(
            shape, self._layers_at(0), num_layers, passing, ends, tokens.data_ptr(), logits.data_ptr(), torch.get_num_threads()
        )
        return hidden, logits

    def draft(
        self,
        fed: Sequence[int],
        num_layers: int,
        cached: Cached,
        start: int,
        count: int,
        sampling: SamplingSpec,
        uniforms: Float[Tensor, "1 n"] | None,
        drafted: Drafted | None = None,
    ) -> tuple[Int[Tensor, "1 n"], Float[Tensor, "1 n V"], Float[Tensor, "1 n"] | None]:
        """Read a row's last tokens and draw ``count`` behind them, one after another, by as many first layers.

        ``uniforms`` draw by the inverse of the cumulative law; None, for temperature 0, takes the likeliest tokens. ``fed`` are
        the model's tokens, what is drawn is of the vocabulary that is ``drafted``.

        Returns:
            The tokens, the logits that each was drawn from, and their log-sum-exp over the temperature among the tokens that
            the sampling keeps, None for temperature 0. Of logits that hold NaN the token is V, or for temperature 0 any.

        Raises:
            IndexError: a token without an embedding, or without a column. InputError: nothing to read or to draw, or too few
                uniforms.
        """
        self._follow_ends()
        if not fed or count < 1 or (uniforms is not None and tuple(uniforms.shape) != (1, count)):
            drawn_by = "" if uniforms is None else f" by uniforms {list(uniforms.shape)}"
            raise InputError(
                f"drafts: {len(fed)} tokens read, {count} drawn{drawn_by}; expected at least one of each, and [1, n]"
            )
        self._check_tokens(fed)
        if drafted is not None and drafted is not self._drafted:
            self._check_drafted(drafted)
            self._drafted = drafted
        size = self._ends.head.width if drafted is None else len(drafted.columns)
        tokens = torch.empty(1, count, dtype=torch.long)
        logits = torch.empty(1, count, size, dtype=self._dtype)
        sums = None if uniforms is None else torch.empty(1, count, dtype=torch.float64)
        uniforms = None if uniforms is None else uniforms.double().contiguous()
        read = (ctypes.c_int64 * len(fed))(*fed)
        drafting = _Drafting(
            len(fed), count, size, ctypes.addressof(read),
            *((None, None) if drafted is None else (drafted.columns.data_ptr(), drafted.embedded.data_ptr())),
            None if uniforms is None else uniforms.data_ptr(),
            sampling.temperature, min(sampling.top_k or size, size), 1.0 if sampling.top_p is None else sampling.top_p,
            torch.get_num_threads(), tokens.data_ptr(), logits.data_ptr(), None if sums is None else sums.data_ptr(),
        )  # fmt: skip
        arguments, _held = self._pass(1, len(fed), start, 0, cached, None)
        places = (self._shape, arguments, self._ends, drafting)
        shape, passing, ends, drafts = map(ctypes.addressof, places)
        self._draft(shape, self._layers_at(0), num_layers, passing, ends, drafts)
        return tokens, logits, sums

    def verify(
        self,
        pending: Sequence[int],
        num_layers: int,
        cached: Cached,
        starts: int | Int[Tensor, "B n"],
        proposal: Proposal,
        sampling: Sampling,
        uniforms: Float[Tensor, "B n"] | None,
        loop: fused_cpu.Loop,
    ) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n V"], list[VerifiedRow]]:
        """Run a pass over every row's pending token and its drafts, and let the loop decide on these by their logits.

        ``uniforms`` None is temperature 0, where both laws are point masses.

        Returns:
            What the last layer gave, the logits, and every row's verdict, whose next token lies outside the vocabulary where
            none could be drawn.

        Raises:
            IndexError: a token without an embedding. InputError: what of the round does not fit.
        """
        self._follow_ends()
        drafts = proposal.tokens.tolist()
        fed = [token for first, row in zip(pending, drafts, strict=True) for token in (first, *row)]
        self._check_tokens(fed)
        batch, num_draft = proposal.tokens.shape
        hidden = torch.empty(batch, num_draft + 1, self._shape.width, dtype=self._dtype)
        logits = torch.empty(batch, num_draft + 1, self._ends.head.width, dtype=self._dtype)
        counts, (target_probs, draft_probs) = (ctypes.c_int64 * (2 * batch))(), PROBABILITIES[self._dtype](batch * num_draft)
        at, target_at, draft_at = map(ctypes.addressof, (counts, target_probs, draft_probs))
        places = fused_cpu.Places(at, at + ctypes.sizeof(counts) // 2, target_at, draft_at)
        round, compared = None, None
        if uniforms is None:
            check_shapes(proposal, logits)
            compared, _used = fused_cpu.compared_arguments(proposal.tokens, proposal.lengths, logits, places)
        else:
            round, _used = fused_cpu.round_arguments(checked(proposal, logits, sampling, uniforms), self._dtype, loop, places)
        arguments, _held = self._pass(batch, num_draft + 1, starts, 0, cached, hidden)
        shape, passing, ends = map(ctypes.addressof, (self._shape, arguments, self._ends))
        read = (ctypes.c_int64 * len(fed))(*fed)
        self._verify(
            shape, self._layers_at(0), num_layers, passing, ends, ctypes.addressof(read), logits.data_ptr(),
            round, compared, torch.get_num_threads(),
        )  # fmt: skip
        rows = []
        for row, drafted in enumerate(drafts):
            own = slice(row * num_draft, (row + 1) * num_draft)
            rows.append(VerifiedRow(counts[row], counts[batch + row], drafted, target_probs[own], draft_probs[own]))
        return hidden, logits, rows


def compiled_layers(layers: Sequence[DecoderLayer], shape: DecoderShape) -> DecoderLayers | None:
    """Return compiled calls, or None where they cannot be had: no compiler, another dtype or device, another activation.

    None also for what the loop does not combine: norms behind the sum, or a source, with norms behind what is added, with a
    share of it or with parallel layers; a source with fewer key heads; interleaved heads with norms, or with fewer key heads.
    """
    library = _library(layers, shape)
    return None if library is None else DecoderLayers(library, layers, shape)


def compiled_decoder(layers: Sequence[DecoderLayer], shape: DecoderShape, ends: DecoderEnds, head: Weight) -> Decoder | None:
    """Return the same for all of a model."""
    library = _library(layers, shape, head) if ends.embedding.dtype == head[0].dtype else None
    return None if library is None else Decoder(library, layers, shape, ends, head)


def _library(layers: Sequence[DecoderLayer], shape: DecoderShape, *others: Weight) -> ctypes.CDLL | None:
    own = (weight for layer in layers for weight in (layer.qkv, layer.out, *(layer.source or ()), layer.up, layer.down))
    weights = [weight for weight, *_ in (*own, *others)]
    dtype = weights[0].dtype
    fits = shape.activation in ACTIVATIONS and dtype in FUNCTIONS and shape.heads % shape.key_heads == 0
    fits = fits and all(_is_combined(layer, shape) for layer in layers)
    fits = fits and all(one.device.type == "cpu" and one.dtype == dtype and one.stride(1) == 1 for one in weights)
    return native.library(SOURCE) if fits else None


def _is_combined(layer: DecoderLayer, shape: DecoderShape) -> bool:
    is_plain = layer.behind is None and layer.share == 1 and not layer.parallel
    has_key_heads = shape.heads == shape.key_heads
    return (
        (not shape.norms_behind or (is_plain and None not in layer.norms))
        and (layer.source is None or (is_plain and has_key_heads))
        and (not shape.interleaved or (has_key_heads and layer.head_norms is None))
    )
