"""Store the weights of a transformers model so that our matrix products are fast and need no second copy; round them.

A product of few rows with a ``[out, in]`` weight is several times slower on a CPU than with the same weight stored
``[in, out]`` (47 against 8 us for 6 rows of 128 on two slow cores), so on a CPU the storage is transposed under the
parameter: shapes and values stay, strides change. Weights that multiply the same input share one storage, of which the
parameters become views. Move a model to its device and dtype before, and train it before: both replace or outdate storage.

A model's linear weights may be rounded to what fewer bytes can hold. The model keeps them in its dtype, so that whatever runs
it computes one function; for the compiled loop there is a second, narrow copy of those that it multiplies by.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kernels.inputs import Rounding
from kernels.products.matrix import TORCH, Choice, compiled_product
from kernels.products.narrow import Narrow, narrow, rounded


@torch.no_grad()
def relayout(model: nn.Module) -> None:
    """Store every linear weight of a CPU model as [in, out]; does nothing on other devices and the second time."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.device.type == "cpu" and module.weight.stride(0) != 1:
            module.weight.data = module.weight.data.t().contiguous().t()


@torch.no_grad()
def round_weights(model: nn.Module, rounding: Rounding) -> None:
    """Round the weight of every linear module, the head among them, and so an embedding that is tied to it; nothing else.

    All weights are finite, as ``load_whole`` sees to.
    """
    for _, module in model.named_modules():
        is_turned = type(module).__name__ == "Conv1D"  # GPT-2's linear module: its weight is [d_in, d_out]
        if isinstance(module, nn.Linear) or is_turned:
            weight = module.weight.data if is_turned else module.weight.data.t()
            weight.copy_(rounded(weight, rounding))


def norm_of(norm: nn.LayerNorm) -> tuple:
    """Return the arguments of ``torch.layer_norm`` behind its input."""
    return norm.normalized_shape, norm.weight.detach(), norm.bias.detach(), norm.eps


class Product:
    """The product of rows with one weight of a stack, plus its bias: ``product(rows)``, or ``onto + product(rows)``.

    As many rows as the choice says go through a compiled loop, all others through torch; those with a rounded weight whatever
    its size, where there is a loop, since it reads ``narrow``, the weight's second copy.
    """

    __slots__ = ("_choice", "_compiled", "_most_rows", "bias", "narrow", "weight")

    def __init__(
        self, weight: Float[Tensor, "d_in d_out"], bias: Float[Tensor, " d_out"] | None = None, choice: Choice = TORCH
    ) -> None:
        self.weight, self.bias, self._choice = weight, bias, choice
        stored = narrow(weight, choice.rounding) if choice.rounding is not None and choice.most_rows else None
        self._compiled = compiled_product(weight, bias, stored) if stored is not None or choice.takes(weight) else None
        self.narrow = stored if self._compiled is not None else None
        self._most_rows = choice.most_rows if self._compiled is not None else 0

    def __call__(self, rows: Float[Tensor, "N d_in"], onto: Float[Tensor, "N d_out"] | None = None) -> Float[Tensor, "N d_out"]:
        if self._compiled is not None and rows.shape[0] <= self._most_rows:
            return self._compiled(rows, onto)
        weight, bias = self.weight, self.bias
        if onto is None:
            return torch.mm(rows, weight) if bias is None else torch.addmm(bias, rows, weight)
        return torch.addmm(onto, rows, weight) if bias is None else torch.addmm(bias, rows, weight).add_(onto)

    @property
    def read_bytes(self) -> int:
        """Return the bytes that a product reads: of the weight as it is stored for them, and of the bias."""
        read = (self.weight,) if self.narrow is None else (self.narrow.numbers, self.narrow.scales)
        return sum(tensor.nbytes for tensor in (*read, self.bias) if tensor is not None)

    @property
    def parts(self) -> tuple[Float[Tensor, "d_in d_out"], Float[Tensor, " d_out"] | None, Narrow | None]:
        """The weight, the bias and the narrow copy."""
        return self.weight, self.bias, self.narrow

    def columns(self, first: int, last: int) -> "Product":
        """Return the product with some of the weight's columns."""
        return Product(self.weight[:, first:last], None if self.bias is None else self.bias[first:last], self._choice)


@torch.no_grad()
def fuse(linears: Sequence[nn.Linear], choice: Choice) -> Product:
    """Join linears that share their input to one weight [in, sum of out] and bias; their parameters become views of it."""
    weight = _adjacent(linears)
    if weight is None:
        weight = torch.cat([linear.weight.data for linear in linears])
        if weight.device.type == "cpu":
            weight = weight.t().contiguous().t()
        for linear, part in zip(linears, weight.split([linear.out_features for linear in linears]), strict=True):
            linear.weight.data = part
    if all(linear.bias is None for linear in linears):
        return Product(weight.t(), None, choice)
    biases = [linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias for linear in linears]
    return Product(weight.t(), torch.cat([bias.detach() for bias in biases]), choice)


def _adjacent(linears: Sequence[nn.Linear]) -> Float[Tensor, "d_out d_in"] | None:
    """Return the weights as one tensor where an earlier call put them side by side in one storage; else None."""
    first = linears[0].weight.data
    offset = first.storage_offset()
    for linear in linears:
        weight = linear.weight.data
        same_storage = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same_storage or weight.stride() != first.stride() or weight.storage_offset() != offset:
            return None
        offset += linear.out_features * weight.stride(0)
    rows = sum(linear.out_features for linear in linears)
    fast = first.device.type != "cpu" or first.stride() == (1, rows)
    return first.as_strided((rows, first.shape[1]), first.stride()) if fast else None
