"""Blockwise decoding (Stern et al. 2018), SpecDec's comparison: k - 1 small heads on the verifier draft what follows its token.

The verifier's last hidden state at a token predicts the next token; head i predicts, from that same state, the i-th token
behind that. A round verifies k - 1 drafts and yields the state that the next ones are made from, so nothing but the heads runs
beside the verifier. The first round has no state yet and drafts nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kernels.verify.interface import refuse_nan
from methods.errors import InputError
from methods.models.bart import BartStack
from methods.models.base import Stack
from methods.models.checkpoint import refuse_whole_numbers, refuse_wiped_out
from methods.options import BLOCKWISE_HEADS as FILE
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.overlap import CHUNK
from methods.types import Inputs, Outcome, Proposal, Session


class BlockwiseHeads(nn.Module):
    """One feed-forward layer of hidden size ``num_heads * hidden_size`` whose outputs are added to the state, one a head.

    The verifier's own output projection turns them into logits (Stern et al., Section 6).
    """

    def __init__(self, width: int, num_heads: int, hidden_size: int) -> None:
        super().__init__()
        if num_heads < 1:
            raise InputError(f"num_heads {num_heads!r}: expected an integer >= 1; k - 1 heads draft blocks of k tokens")
        self.num_heads = num_heads
        self.up, self.down = nn.Linear(width, num_heads * hidden_size), nn.Linear(num_heads * hidden_size, num_heads * width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, hidden: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch heads D"]:
        added = self.down(F.relu(self.up(hidden))).unflatten(-1, (self.num_heads, -1))
        return hidden.unsqueeze(-2) + added

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file({name: weight.contiguous() for name, weight in self.state_dict().items()}, Path(folder) / FILE)


def load_blockwise(folder: str | Path, stack: Stack) -> BlockwiseHeads:
    """Load heads that ``BlockwiseHeads.save`` wrote, on the verifier's device and in its dtype.

    Raises:
        InputError: no heads there, a damaged file, other weights, or heads of another width than the verifier's.
    """
    file = Path(folder) / FILE
    if not file.is_file():
        raise InputError(f"blockwise heads {folder}: no {FILE} there; expected a folder that blockwise heads were saved to")
    width = stack.num_heads * stack.head_dim
    try:
        state = load_file(file)
        hidden_size, theirs = state["up.weight"].shape
        num_heads = state["down.weight"].shape[0] // width
    except (SafetensorError, KeyError, ValueError) as error:
        raise _damaged(folder, error) from error
    if theirs != width:
        raise InputError(
            f"blockwise heads {folder}: they are {theirs} wide and the verifier {width}; "
            "expected heads that were trained on this verifier"
        )
    heads = BlockwiseHeads(width, num_heads, hidden_size // max(1, num_heads))
    try:
        refuse_whole_numbers(state)
        heads.load_state_dict(state)
        heads = heads.to(stack.device, stack.dtype).eval().requires_grad_(False)
        refuse_wiped_out(heads.state_dict())
    except (RuntimeError, InputError) as error:
        raise _damaged(folder, error) from error
    return heads


def _damaged(folder: str | Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0]
    return InputError(
        f"blockwise heads {folder}: {FILE} cannot be used ({reason}); expected what blockwise heads were saved as"
    )


def blockwise_loss(
    heads: BlockwiseHeads,
    project: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "B M D"],
    outputs: Int[Tensor, "B M"],
    output_lengths: Int[Tensor, "B"],
    head: int | None = None,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Compute the mean cross-entropy of the heads, or of one of them, over the tokens that they can predict.

    ``hidden[:, t]`` is the verifier's last state that predicts ``outputs[:, t]`` (its input was the start token and the outputs
    before t), ``project`` its output projection. A head chosen at random each step keeps memory small, as Stern et al. do.
    0 where every sentence is too short.
    """
    chosen = range(heads.num_heads) if head is None else (head,)
    added, num_tokens = heads(hidden), outputs.shape[1]
    total, count = hidden.new_zeros(()), hidden.new_zeros(())
    for index in chosen:
        reach = max(0, num_tokens - index - 1)
        logits, targets = project(added[:, :reach, index]), outputs[:, index + 1 :]
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=label_smoothing)
        inside = torch.arange(reach, device=outputs.device) + index + 1 < output_lengths.unsqueeze(1)
        total, count = total + (losses * inside.flatten()).sum(), count + inside.sum()
    return total / count.clamp(min=1)


class BlockwiseDrafter:
    """Drafts with heads over the hidden states of the target that it is verified by (``read``).

    Raises:
        InputError: a verifier that is no BART or Marian: others norm their last state before they project it.
    """

    def __init__(self, heads: BlockwiseHeads, stack: Stack) -> None:
        if not isinstance(stack, BartStack):
            kind = stack.model.config.model_type
            raise InputError(f"model type {kind!r}: blockwise heads draft for bart and marian verifiers only")
        self.heads, self.stack = heads, stack

    def read(self, target: Session) -> None:
        if not isinstance(target, ModelSession):
            raise InputError(
                f"target {type(target).__name__}: blockwise heads read the hidden states that a ModelSession keeps"
            )
        self.target = target

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        self.uniforms = uniforms
        self.state: Float[Tensor, "B D"] | None = None

    @torch.inference_mode()
    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        most = 0 if self.state is None else self.heads.num_heads
        lengths = tuple(max(0, min(count, most)) for count in num_draft)
        longest = max(lengths)
        if self.state is None or longest == 0:
            return Proposal.nothing(len(lengths), sampling, self.stack.device)
        logits = self.stack.head(self.heads(self.state)[:, :longest])
        if sampling.greedy:
            refuse_nan(logits[:, 0])
        tokens = logits.argmax(-1) if sampling.greedy else sampling.draw(logits, self.uniforms.draft(positions, longest))
        return Proposal(tokens, lengths, logits, sampling)

    def commit(self, outcome: Outcome) -> None:
        """The state behind the last token that stands: it predicts the round's own token, and the heads what follows."""
        hidden = self.target.hidden
        if len(hidden) == 1:
            self.state = hidden[:, outcome.num_accepted[0]]
        else:
            kept = torch.tensor(outcome.num_accepted, device=hidden.device)
            self.state = hidden[torch.arange(len(hidden), device=hidden.device), kept]

    def select(self, rows: Sequence[int]) -> None:
        self.state = None if self.state is None else self.state[list(rows)]
        self.uniforms = self.uniforms.select(rows)

    @torch.inference_mode()
    def teacher_blocks(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], starts: Sequence[int]
    ) -> Float[Tensor, "starts heads V"]:
        """Return the logits of the drafts behind the first ``starts`` tokens of a given output (one row), each at least 1.

        They follow from the state that gave the last of these tokens, read anew in one pass over the text.
        """
        session = ModelSession(self.stack)
        session.prefill(inputs)
        text = torch.tensor([[*pending, *output][: max(starts)]], device=self.stack.device)
        hidden = session.run_layers(session.embed(text), 0, session.num_layers)[0]
        return self.stack.head(self.heads(hidden[[start - 1 for start in starts]]))

    @torch.inference_mode()
    def teacher_probs(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], sampling: Sampling
    ) -> Iterator[Float[Tensor, "chunk V"]]:
        """The first head's law before each token of a given output (one row); no mass before the first: it is not drafted."""
        session = ModelSession(self.stack)
        session.prefill(inputs)
        text = [*pending, *output][: len(output)][: self.stack.position_limit]
        yield torch.zeros(min(1, len(text)), self.stack.vocab_size, device=self.stack.device, dtype=self.stack.dtype)
        for start in range(0, len(text) - 1, CHUNK):
            piece = torch.tensor([text[start : min(start + CHUNK, len(text) - 1)]], device=self.stack.device)
            hidden = session.run_layers(session.embed(piece), 0, session.num_layers)
            yield sampling.probs(self.stack.head(self.heads(hidden[0])[:, :1]))[:, 0]
