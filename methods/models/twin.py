"""A copy of a transformers model over the same weights, in which what is ours stands in the place of some of its modules.

Linear modules multiply by our loop, norms are ours where they compute the same, and layers can be run in part. The
model itself stays as it was.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kernels.layers.decoder import NormWeights
from kernels.products.matrix import Choice
from methods.models.base import Norm, rms_norm
from methods.models.weights import Product

FLOORS = ("variance_epsilon", "eps")  # as norms name what they add to the mean square
NORM_ROUNDING = 2e-6  # of a norm in fp32: six operations


class Standin:
    """A function that is called in a module's place; all else that is asked of it is the module's.

    It is no module: that call alone takes as long as a small operation.
    """

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        self.module, self.function = module, function

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.function(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def twin_of(model: Any, choice: Choice) -> Any:
    """Return a model with the same weights, whose linear modules multiply as the choice says; its norms are ours."""
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    twin = deepcopy(model, shared)
    for parent in twin.modules():
        for name, module in parent.named_children():
            if (function := _by_rows(module, choice) or by_our_norm(module)) is not None:
                vars(parent)[name] = Standin(module, function)
                vars(module)["forward"] = function  # for parents that keep it in a list
    return twin


def _by_rows(module: nn.Module, choice: Choice) -> Callable[[Tensor], Tensor] | None:
    """Return a linear module's product where the choice takes its weight."""
    if type(module) is not nn.Linear or not choice.takes(module.weight.detach().t()):
        return None
    product = Product(module.weight.detach().t(), None if module.bias is None else module.bias.detach(), choice)

    def multiply(hidden: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        return product(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)

    return multiply


def norm_weights(module: nn.Module) -> NormWeights | None:
    """Return what a module's norm computes by, in fp32 on a CPU; None for one that is told to be no norm of ours."""
    if type(module) is nn.LayerNorm and module.weight is not None and module.bias is not None:
        return NormWeights(module.weight.detach(), module.bias.detach(), module.eps)
    return _told_root_mean_square(module)


def by_our_norm(module: nn.Module) -> Norm | None:
    """Return the root mean square norm that a module computes, in fp32 on a CPU, where ours takes half of the time.

    Numbers of another dtype go through the module itself: some norms are kept in fp32 in an fp16 model.
    """
    told, theirs = _told_root_mean_square(module), module.forward
    if told is None:
        return None
    ours = rms_norm(told.gain, told.epsilon)

    def norm(hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return ours(hidden) if hidden.dtype is torch.float32 else theirs(hidden)

    return norm


@torch.no_grad()
def _told_root_mean_square(module: nn.Module) -> NormWeights | None:
    """Tell a norm by what it gives for numbers of two sizes, of which the smaller show its floor.

    Families write it in their own ways: some add one to the weight, some divide by the deviation.
    """
    weight = getattr(module, "weight", None)
    floor = next((vars(module)[name] for name in FLOORS if name in vars(module)), None)
    if floor is None or not isinstance(weight, Tensor) or weight.dim() != 1 or len(list(module.parameters())) != 1:
        return None
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return None
    numbers = torch.linspace(-1, 2, 3 * len(weight)).view(3, -1) * torch.tensor([[1.0], [floor**0.5], [1.0]])
    given = module.forward(numbers)
    for gain in (weight.detach(), 1 + weight.detach()):
        if torch.allclose(rms_norm(gain, floor)(numbers), given, rtol=NORM_ROUNDING, atol=0):
            return NormWeights(gain, None, floor)
    return None


class Told(threading.local):
    """What a thread tells of a twin's pass that it makes: what the layers ``output``, and the head's ``weight`` [D, V].

    The head takes the weight with it; None is its own.
    """

    output: Any = None
    weight: Tensor | None = None


def put_head(twin: Any, told: Told) -> None:
    """Let a twin's last matrix be another one where a weight is told; all else that a family does to its logits stays."""
    found = twin.get_output_embeddings()
    head = found.module if isinstance(found, Standin) else found
    for parent in twin.modules():
        for name in [name for name, module in parent._modules.items() if module is head]:
            vars(parent)[name] = Standin(head, _by_told_weight(getattr(parent, name), getattr(head, "bias", None), told))


def _by_told_weight(own: Callable[[Tensor], Tensor], bias: Tensor | None, told: Told) -> Callable[[Tensor], Tensor]:
    def project(hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        weight, told.weight = told.weight, None
        if weight is None:
            return own(hidden)
        product = Product(weight, None if bias is None else bias.detach())
        return product(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)

    return project


class Span(threading.local):
    """The layers of a twin, of which a pass runs some: layers ``first``..``last`` - 1, all where nothing else is said.

    ``given`` enters the first of them (None: what the family made of its embeddings). What leaves the last one is ``left``, and
    goes to what the family has behind its layers. Each thread has its own.
    """

    left: Any = None

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self._run_all()

    def _run_all(self) -> None:
        self.first, self.last = 0, self.num_layers
        self.given: Float[Tensor, "B n D"] | None = None

    @contextmanager
    def of(self, first: int, last: int, given: Float[Tensor, "B n D"] | None) -> Iterator[None]:
        """Run these layers in the passes within; where there is none (``first`` is ``last``), ``given`` leaves as it came."""
        self.first, self.last, self.given = first, last, given
        try:
            yield
        finally:
            self._run_all()


class Spanned(Standin):
    """A layer under a span. Outside of it it does nothing, and returns as many things as it does inside."""

    def __init__(self, layer: nn.Module, number: int, span: Span) -> None:
        super().__init__(layer, layer)
        self.span, self._number = span, number
        self._length: int | None = None  # of the tuple that it returns

    def __call__(self, hidden: Tensor, *more: Any, **named: Any) -> Any:
        span, number = self.span, self._number
        if span.given is not None and number == min(span.first, span.num_layers - 1):
            hidden = span.given
        made: Any
        if span.first <= number < span.last:
            made = self.function(hidden, *more, **named)
            self._length = len(made) if isinstance(made, tuple) else None
        else:
            made = hidden if self._length is None else (hidden, *(None,) * (self._length - 1))
        if number + 1 == span.num_layers:
            span.left = made if self._length is None else made[0]
        return made


def put_under_span(body: Any, num_layers: int) -> list[Spanned] | None:
    """Put the layers of a twin's body under a span. None where they are not all in one list of modules."""
    names = (name for name, part in body.named_modules() if isinstance(part, nn.ModuleList) and len(part) == num_layers)
    if (path := next(names, None)) is None:
        return None
    owner, _, name = path.rpartition(".")
    holder, span = body.get_submodule(owner), Span(num_layers)
    layers = [Spanned(layer, number, span) for number, layer in enumerate(holder._modules[name])]
    vars(holder)[name] = layers
    return layers
