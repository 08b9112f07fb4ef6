"""How often a round waits for a device: values that are read back, and tables that are copied there while the host waits.

Nothing here has a device. Tensors of the loop say that they are on CUDA, and what would wait there is counted: ``item`` and its
kin, ``tolist``, ``cpu``, ``nonzero``, truth values, and tensors made of a Python list on the device.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.run.instruments import marking_clock, settled
from methods.autoregressive import Autoregressive
from methods.errors import NotFiniteError
from methods.models import stack_for
from methods.models.t5 import FP16_MARGIN, _finite
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import KernelRule, SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.speculative.translation import UNSEEN
from methods.static import Room, StaticSession
from methods.types import Inputs, Stop, VerifyRule

GAMMA, TOKENS = 3, 24
READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero")


class OnHost(Tensor):
    """What was brought to the host once: reading it waits for nothing."""


class Mark:
    """A reading of a clock that marks places in a device's work."""

    def __sub__(self, before: "Mark") -> "Lapse":
        return Lapse()


class Lapse:
    """The seconds between two marks: whoever asks for them waits."""

    asked = 0

    def __float__(self) -> float:
        Lapse.asked += 1
        return 0.5


def llama(seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return stack_for(transformers.LlamaForCausalLM(config))


@contextmanager
def counted(seen: Counter[str]) -> Iterator[None]:
    """Count what waits; only what happens while a round is open."""
    with pytest.MonkeyPatch.context() as patch:

        def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def call(self: Tensor, *arguments: Any) -> Any:
                if not isinstance(self, OnHost):
                    seen[name] += 1
                return original(self, *arguments)

            return call

        for name in READS:
            patch.setattr(Tensor, name, counting(name, getattr(Tensor, name)))

        def cpu(self: Tensor) -> Tensor:
            seen["cpu"] += 1
            return self.detach().clone().as_subclass(OnHost)

        patch.setattr(Tensor, "cpu", cpu)
        patch.setattr(Tensor, "is_cuda", property(lambda self: True), raising=False)
        made = torch.tensor

        def tensor(values: Any, **more: Any) -> Tensor:
            seen["torch.tensor(device=)"] += "device" in more
            return made(values, **more)

        patch.setattr(torch, "tensor", tensor)
        yield


def fixed(stack: Any, rows: int, most_new: int) -> StaticSession:
    return StaticSession(stack, Room(rows, 3, TOKENS), most_new)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_a_plain_token_waits_once(sampling: Sampling, rows: int) -> None:
    """The token is read; what is asked before and behind a text does not count."""
    session, found = ModelSession(llama(0)), []
    for count in (TOKENS, 2 * TOKENS):
        seen, inputs = Counter[str](), Inputs(((3, 4, 5),) * rows)
        with counted(seen):
            Autoregressive().generate(session, inputs, sampling, Uniforms(range(rows), count), Stop(max_new_tokens=count))
        found.append(sum(seen[name] for name in (*READS, "cpu")))
    assert found[1] - found[0] == TOKENS


def waits_a_round(sampling: Sampling, rows: int, same: bool, captured: bool = False) -> Counter[str]:
    """What waited in all rounds but the last of each row, divided by how many there were; ``same``: every draft stands."""
    target = llama(0)
    draft = target if same else llama(1)
    drafting = fixed(draft, rows, UNSEEN) if captured else ModelSession(draft)
    method = DraftAndVerify(ModelDrafter(drafting), SpeculativeSampling(), partial(Constant, GAMMA))
    seen, rounds, number = Counter[str](), Counter[str](), 0
    original = method._round

    def round_of(*arguments: Any) -> None:
        nonlocal number
        with counted(now := Counter[str]()):
            original(*arguments)
        if all(row.left > 0 for row in arguments[1]):  # where a row ends, one look at its logits is due
            seen.update(now)
            number += 1

    method._round = round_of  # type: ignore[method-assign]
    inputs = Inputs(tuple((1, 5 + row, 7) for row in range(rows)))
    Lapse.asked, numbers, stop = 0, Uniforms(range(rows), TOKENS), Stop(max_new_tokens=TOKENS)
    session = fixed(target, rows, GAMMA + 1) if captured else ModelSession(target)
    made = method.generate(session, inputs, sampling, numbers, stop, Mark)
    assert number >= 3
    assert Lapse.asked == 0
    assert [one.steps[0].round_s for one in settled(made)] == [0.5] * rows
    for name, count in seen.items():
        if count:
            rounds[name] = -(-count // number)
    return rounds


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("same", [False, True], ids=["few drafts stand", "all drafts stand"])
@pytest.mark.parametrize("captured", [False, True])
def test_a_round_waits_once(temperature: float, rows: int, same: bool, captured: bool) -> None:
    """The verdict's way to the host. Found before: the pending token's copy behind the drafts, one read a full accept, and of a
    greedy round a look at the draft's logits for NaN, which no rule would see."""
    assert waits_a_round(Sampling(temperature=temperature), rows, same, captured) == {"cpu": 1}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_draft_that_turns_nan_is_refused_with_that_one_wait(on_device: bool, captured: bool) -> None:
    """Of greedy drafts on a CPU at once, on a device when the verdict is on the host: they would only be rejected, and slow."""
    target, draft = llama(0), llama(1)
    draft.project.weight.fill_(float("nan"))
    drafting = fixed(draft, 2, UNSEEN) if captured else ModelSession(draft)
    method = DraftAndVerify(ModelDrafter(drafting), SpeculativeSampling(), partial(Constant, GAMMA))
    inputs, stop = Inputs(((1, 5, 7), (1, 6))), Stop(max_new_tokens=TOKENS)
    session = fixed(target, 2, GAMMA + 1) if captured else ModelSession(target)
    with counted(Counter()) if on_device else nullcontext(), pytest.raises(NotFiniteError, match="logits of row 0: hold NaN"):
        method.generate(session, inputs, Sampling(), Uniforms(range(2), TOKENS), stop)


def test_an_encoder_in_fp16_keeps_its_states_finite_without_a_look() -> None:
    hidden, seen = torch.tensor([[1.0, float("inf"), -float("inf")]], dtype=torch.float16), Counter[str]()
    with counted(seen):
        kept = _finite(hidden)
    most = torch.finfo(torch.float16).max - FP16_MARGIN
    assert not seen.total()
    assert kept.tolist() == torch.tensor([[1.0, most, -most]], dtype=torch.float16).tolist()
    assert torch.equal(_finite(hidden[:, :1]), hidden[:, :1])


def test_a_devices_clock_waits_where_its_seconds_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, made = list[float](), iter((0.0, 250.0, 1000.0))

    class Event:
        """An event that the device comes past at a time, in milliseconds, that is known beforehand."""

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at = next(made)

        def record(self, stream: object) -> None:
            assert stream == "stream of cuda:1"

        def synchronize(self) -> None:
            waited.append(self.at)

        def elapsed_time(self, end: "Event") -> float:
            assert end.at in waited
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    clock = marking_clock("cuda:1")
    first, second, third = clock(), clock(), clock()
    lapses = second - first, third - second
    assert waited == []
    assert [float(lapse) for lapse in lapses] == [0.25, 0.75]
    assert waited == [250.0, 1000.0]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("make", [SpeculativeSampling, partial(KernelRule, "fused")])
def test_a_sampled_draft_that_is_nan_is_refused_by_the_verdict(make: Callable[[], VerifyRule], captured: bool) -> None:
    """Found before: a token outside of the vocabulary was drawn, an IndexError and on CUDA an assertion of the device."""
    target, draft = llama(0), llama(1)
    draft.project.weight.fill_(float("nan"))
    drafting = fixed(draft, 1, UNSEEN) if captured else ModelSession(draft)
    method = DraftAndVerify(ModelDrafter(drafting), make(), partial(Constant, GAMMA))
    session = fixed(target, 1, GAMMA + 1) if captured else ModelSession(target)
    with pytest.raises(NotFiniteError, match="hold NaN"):
        method.generate(
            session, Inputs(((1, 5, 7),)), Sampling(temperature=1.0), Uniforms([0], TOKENS), Stop(max_new_tokens=TOKENS)
        )
