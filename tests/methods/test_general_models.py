"""Families without a stack of their own, by transformers' forward pass: their logits are one pass's, whatever is rewound."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from harness.run.replay.beams import searched
from kernels.products.matrix import Choice, compiled_product
from methods.autoregressive import Autoregressive
from methods.beam import BeamSearch
from methods.errors import InputError
from methods.models import stack_for
from methods.models.base import rms_norm
from methods.models.general import GeneralEncoderDecoderStack, GeneralStack, _Layer
from methods.models.llama import LlamaStack
from methods.models.twin import Spanned, Standin, by_our_norm
from methods.ppd.heads import OwnHead
from methods.ppd.memory import Candidates, PipelineSession
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.ppd.plans import Execution, Plan
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.per_row import CopyDrafter, PerRow
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Inputs, Stop

VOCABULARY, POSITIONS = 96, 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": POSITIONS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
GPT_SIZES = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": POSITIONS}
# A configuration class, without "Config", and what it needs beside SIZES. "2" behind a name is a second kind of it.
FAMILIES: dict[str, dict[str, Any]] = {
    "Bloom": {"n_layer": 3, "n_head": 4},
    "Cohere": {"logit_scale": 0.5},
    "DeepseekV2": {**LATENT, "topk_method": "greedy"},
    "DeepseekV3": LATENT,
    "Ernie4_5": {"head_dim": 8},
    "Falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "Falcon2": {"alibi": True},
    "Gemma2": {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2},
    "Glm": {"head_dim": 8},
    "GPTBigCode": GPT_SIZES,
    "GPTJ": {**GPT_SIZES, "rotary_dim": 4},
    "GPTNeoX": {},
    "Granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
    "Llama4Text": {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 64, "attention_chunk_size": 16},
    "Mixtral": {"num_local_experts": 4},
    "ModernBertDecoder": {"local_attention": 64},
    "Mpt": {"d_model": 32, "n_heads": 4, "n_layers": 3},
    "Nemotron": {},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 16},
    "Olmo2": {},
    "Phi": {},
    "Phi3": {"sliding_window": 8},
    "Qwen3": {"head_dim": 8},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "SmolLM3": {"no_rope_layer_interval": 2},
    "StableLm": {},
    "Starcoder2": {"sliding_window": 8},
}
WITH_EXPERTS = ("DeepseekV2", "DeepseekV3", "Llama4Text", "Mixtral", "Qwen3Moe")  # whose kernels take no fp64
IN_PART_FP32 = ("Bloom", "GPTJ", "Gemma2", "Mpt")  # which compute attention's softmax, or more, in fp32 whatever the dtype
PAIRED_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": POSITIONS,
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2,
}  # fmt: skip
T5_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 4,
    "feed_forward_proj": "gated-gelu", "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
LIMITED = {"max_encoder_position_embeddings": POSITIONS, "max_decoder_position_embeddings": POSITIONS}
PAIRED: dict[str, dict[str, Any]] = {
    "Blenderbot": PAIRED_SIZES,
    "LED": {**PAIRED_SIZES, **LIMITED, "attention_window": 8},
    "LongT5": T5_SIZES,
    "M2M100": PAIRED_SIZES,
    "MBart": PAIRED_SIZES,
    "MT5": T5_SIZES,
    "NllbMoe": {**PAIRED_SIZES, "num_experts": 2},
    "Pegasus": PAIRED_SIZES,
    "SwitchTransformers": {**T5_SIZES, "num_experts": 2},
    "UMT5": T5_SIZES,
}
STATEFUL = ("Mamba", "Rwkv", "xLSTM", "RecurrentGemma", "Jamba")


def build(family: str, **more: Any) -> Any:
    """A random model with large weights, so that its choices are far apart."""
    name = family.removesuffix("2") if family == "Falcon2" else family
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **FAMILIES.get(family, {}), **more})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.3)
    return model.to(torch.float32 if family in WITH_EXPERTS else torch.float64).eval()


def tolerance(family: str) -> float:
    """Of the largest logit: rounding."""
    return 2e-5 if family in WITH_EXPERTS else 1e-6 if family in IN_PART_FP32 else 1e-12


def text(seed: int, length: int) -> list[int]:
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([tokens])).logits[0]


@pytest.fixture(scope="module", params=[*FAMILIES])
def family(request: pytest.FixtureRequest) -> tuple[str, Any, GeneralStack]:
    model = build(request.param)
    stack = stack_for(model)
    assert isinstance(stack, GeneralStack)
    return request.param, model, stack


@pytest.mark.parametrize("lengths", [(1,), (30,), (5, 17, 30), (12, 12)])
def test_logits_behind_a_rewound_text_are_one_passs(family: tuple[str, Any, GeneralStack], lengths: tuple[int, ...]) -> None:
    name, model, stack = family
    prompts = [text(row, length) for row, length in enumerate(lengths)]
    session = ModelSession(stack)
    last = session.prefill(Inputs(tuple(map(tuple, prompts))))
    session.extend(torch.tensor([[first, *text(90 + row, 4)] for row, first in enumerate(last)]))
    session.rewind([4 - row % 2 for row in range(len(lengths))])
    kept = [[*prompt, *text(90 + row, 4)[: row % 2]] for row, prompt in enumerate(prompts)]
    more = [text(50 + row, 6) for row in range(len(lengths))]
    given = session.extend(torch.tensor(more))
    for row, (before, own) in enumerate(zip(kept, more, strict=True)):
        wanted = logits_of(model, [*before, *own])[-6:]
        torch.testing.assert_close(given[row], wanted, rtol=0, atol=tolerance(name) * float(wanted.abs().max()))


def test_greedy_speculation_is_generates_output(family: tuple[str, Any, GeneralStack]) -> None:
    """With copied drafts, a batch of which the rows differ; an output ends where ``generate``'s does."""
    name, model, stack = family
    prompts = tuple(tuple(text(row, 9) * 2) for row in range(2))
    stop = Stop(max_new_tokens=20, token_ids=frozenset({2}))
    method = DraftAndVerify(PerRow(CopyDrafter(VOCABULARY)), SpeculativeSampling(), lambda: Constant(4))
    uniforms = Uniforms([0, 1], 20)
    made = method.generate(ModelSession(stack), Inputs(prompts), Sampling(), uniforms, stop)
    plain = Autoregressive().generate(ModelSession(stack), Inputs(prompts), Sampling(), uniforms, stop)
    for prompt, output, alone in zip(prompts, made, plain, strict=True):
        theirs = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=20,
            do_sample=False,
            pad_token_id=0,
        )
        assert list(output.tokens) == theirs[0, len(prompt) :].tolist(), name
        assert output.tokens == alone.tokens


def test_a_full_row_is_refused_and_its_padding_is_not_read() -> None:
    model = build("OPT")
    session = ModelSession(stack_for(model))
    prompts = (tuple(text(0, POSITIONS - 1)), tuple(text(1, POSITIONS - 3)))
    last = session.prefill(Inputs(prompts))
    given = session.extend(torch.tensor([[last[0], 0, 0], [last[1], *text(2, 2)]]))
    wanted = logits_of(model, [*prompts[1], *text(2, 2)])[-3:]
    torch.testing.assert_close(given[1], wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(given[0, :1], logits_of(model, list(prompts[0]))[-1:], rtol=0, atol=1e-10)
    with pytest.raises(InputError, match=f"position limit {POSITIONS}"):
        session.extend(torch.tensor([[1, 1, 1], [1, 1, 1]]))


@pytest.mark.parametrize("name", STATEFUL)
def test_what_keeps_a_state_is_refused(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(**{**SIZES, "num_hidden_layers": 2})
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    with pytest.raises(InputError, match="it keeps a running state, which cannot be rewound; choose one with attention"):
        stack_for(model)


@torch.no_grad()
def shallow_logits(model: Any, num_layers: int, tokens: list[int]) -> torch.Tensor:
    """The logits of a model that has some first layers alone."""
    shallow = deepcopy(model)
    lists = [part for part in shallow.modules() if isinstance(part, nn.ModuleList) and len(part) == 3]
    del lists[0][num_layers:]
    return logits_of(shallow, tokens)


def test_layers_run_one_by_one(family: tuple[str, Any, GeneralStack]) -> None:
    """Behind a cached text; the head reads an early layer as that of a model without the others does."""
    name, model, stack = family
    prompt, tokens = text(0, 20), text(1, 5)
    session = ModelSession(stack)
    session.prefill(Inputs((tuple(prompt),)))
    hidden = session.embed(torch.tensor([tokens]))
    for layer in range(3):
        hidden = session.run_layers(hidden, layer, layer + 1)
        if layer != 1:
            wanted = shallow_logits(model, layer + 1, [*prompt[:-1], *tokens])[-5:]
            given = session.head(hidden)[0]
            torch.testing.assert_close(given, wanted, rtol=0, atol=tolerance(name) * float(wanted.abs().max()))
    own = model.get_output_embeddings()
    projected = session.head(hidden, torch.zeros_like(own.weight).t())
    assert torch.equal(projected[0, 0], torch.zeros(VOCABULARY) if own.bias is None else own.bias.detach())
    given, same = (
        session.head(hidden),
        session.head(hidden, own.weight.detach().t()),
    )  # fault: without what scales or caps logits
    torch.testing.assert_close(given, same, rtol=0, atol=tolerance(name) * float(given.abs().max()))


def test_candidates_give_what_a_session_gives(family: tuple[str, Any, GeneralStack]) -> None:
    """Three that run as a batch, the first layers of each behind one cached text, whose order a window or a slope may need."""
    name, _, stack = family
    prompt, tokens = tuple(text(0, 21)), text(1, 3)
    storage = torch.zeros(3, 1, 3 + 40, 2 * stack.num_kv_heads, stack.head_dim, dtype=stack.dtype)
    session = PipelineSession(stack, storage, 3)
    session.prefill(Inputs((prompt,)))
    together = Candidates(stack, storage, 3, range(3)).run(tokens, 20, 2)
    last = Candidates(stack, storage, 3, range(2, 3)).run(tokens[2:], 20, 2)
    for place, token in enumerate(tokens):
        wanted = session.run_layers(session.embed(torch.tensor([[token]])), 0, 2)[0, 0]
        near = {"rtol": 0, "atol": tolerance(name) * float(wanted.abs().max())}
        torch.testing.assert_close(together[place], wanted, **near)
        if place == 2:
            torch.testing.assert_close(last[0], wanted, **near)
        session.lengths[:2] = [(20,)] * 2


@pytest.mark.parametrize("execution", ["simulated", "process", "batched"])
@pytest.mark.parametrize("name", ["Bloom", "Gemma3Text", "OPT"])
def test_a_pipelines_output_is_plain_decodings(name: str, execution: Execution) -> None:
    """With positions, slopes or windows, beside embeddings that are narrower than hidden states."""
    stack = stack_for(build(name))
    inputs, stop, uniforms = Inputs((tuple(text(0, 12)),)), Stop(max_new_tokens=20), Uniforms([0], 20)
    method = PredictivePipelinedDecoding(stack, OwnHead(), Plan(early_layer=2, num_candidates=3), execution)
    [made] = method.generate(ModelSession(stack), inputs, Sampling(), uniforms, stop)
    method.close()
    [plain] = Autoregressive().generate(ModelSession(stack), inputs, Sampling(), uniforms, stop)
    assert made.tokens == plain.tokens
    assert any(step.matched for step in made.steps)


def test_layers_that_hand_on_more_than_hidden_states_run_together() -> None:
    """T5's first layer gives the others its table of distances. Fault: in half precision this passed for rounding."""
    for dtype in (torch.bfloat16, torch.float16):
        assert not stack_for(paired_model("MT5").to(dtype)).runs_layers_alone
    stack = stack_for(paired_model("MT5"))
    assert not stack.runs_layers_alone
    session = ModelSession(stack)
    session.prefill(Inputs(((1, 2, 3),)))
    hidden = session.embed(torch.tensor([[3]]))
    with pytest.raises(InputError, match="model type 'mt5': its layers run together"):
        session.run_layers(hidden, 0, 1)
    with pytest.raises(InputError, match="model type 'mt5': no head but its own can be put on it"):
        session.head(hidden, torch.zeros(32, VOCABULARY, dtype=torch.float64))


def test_layers_that_do_not_fit_together_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults that the trial is known to catch: a layer that runs though it should not, and one that fails by itself."""
    model = build("Qwen3")
    assert stack_for(model).runs_layers_alone
    inside = Spanned.__call__

    def run_the_last_one_too(self: Spanned, hidden: torch.Tensor, *more: Any, **named: Any) -> Any:
        self.span.last += self._number == 1
        return inside(self, hidden, *more, **named)

    def fail(self: Spanned, hidden: torch.Tensor, *more: Any, **named: Any) -> Any:
        if self.span.first:
            raise TypeError("expected what the first layer gives")
        return inside(self, hidden, *more, **named)

    for fault in (run_the_last_one_too, fail):
        monkeypatch.setattr(Spanned, "__call__", fault)
        assert not stack_for(model).runs_layers_alone


def paired_model(name: str) -> Any:
    config = getattr(transformers, f"{name}Config")(**PAIRED.get(name, PAIRED_SIZES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).double().eval()
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.3)
    return model


@pytest.fixture(scope="module", params=[*PAIRED])
def paired(request: pytest.FixtureRequest) -> tuple[Any, GeneralEncoderDecoderStack]:
    model = paired_model(request.param)
    stack = stack_for(model)
    assert isinstance(stack, GeneralEncoderDecoderStack)
    return model, stack


@pytest.mark.parametrize("lengths", [(7,), (4, 11), (6, 6)])
def test_an_encoder_decoders_logits_are_one_passs(
    paired: tuple[Any, GeneralEncoderDecoderStack], lengths: tuple[int, ...]
) -> None:
    """Rows whose sources and outputs have other lengths, behind a text that was rewound, and with their places exchanged."""
    model, stack = paired
    sources = [text(row, length) for row, length in enumerate(lengths)]
    session = ModelSession(stack)
    first = session.prefill(Inputs(tuple(map(tuple, sources))))
    session.extend(torch.tensor([[start, *text(90 + row, 4)] for row, start in enumerate(first)]))
    session.rewind([4 - row for row in range(len(lengths))])
    order = list(reversed(range(len(lengths))))
    session.select(order)
    more = [text(50 + row, 5) for row in range(len(lengths))]
    given = session.extend(torch.tensor([more[row] for row in order]))
    for place, row in enumerate(order):
        decoded = torch.tensor([[first[row], *text(90 + row, 4)[:row], *more[row]]])
        with torch.no_grad():
            wanted = model(input_ids=torch.tensor([sources[row]]), decoder_input_ids=decoded).logits[0, -5:]
        torch.testing.assert_close(given[place], wanted, rtol=0, atol=1e-11 * float(wanted.abs().max()))


def test_an_encoder_decoders_beams_are_found_again(paired: tuple[Any, GeneralEncoderDecoderStack]) -> None:
    """Fault: what an encoder of experts gives beside its states was left out, and the replay of a clean run died."""
    _, stack = paired
    inputs, stop = Inputs((tuple(text(0, 9)),)), Stop(max_new_tokens=12, token_ids=frozenset({stack.model.config.eos_token_id}))
    [made] = BeamSearch(3).generate(ModelSession(stack), inputs, Sampling(), Uniforms([0], 12), stop)
    found = list(searched(stack, inputs, made.tokens, 3, stop.token_ids, 12))
    assert len(found) == len(made.tokens)
    assert not any(one.is_fault for one in found)


def test_an_encoder_decoders_speculation_is_generates_output(paired: tuple[Any, GeneralEncoderDecoderStack]) -> None:
    model, stack = paired
    source = tuple(text(0, 9))
    stop = Stop(max_new_tokens=16, token_ids=frozenset({stack.model.config.eos_token_id}))
    method = DraftAndVerify(PerRow(CopyDrafter(VOCABULARY)), SpeculativeSampling(), lambda: Constant(4))
    [made] = method.generate(ModelSession(stack), Inputs((source,)), Sampling(), Uniforms([0], 16), stop)
    asked = {"inputs": torch.tensor([source]), "attention_mask": torch.ones(1, len(source))}
    plain = {"forced_bos_token_id": None, "forced_eos_token_id": None, "num_beams": 1, "do_sample": False}
    theirs = model.generate(**asked, **plain, max_new_tokens=16)[0, 1:].tolist()
    assert list(made.tokens) == theirs


def test_a_family_with_a_stack_is_the_same_model_through_the_general_one() -> None:
    model = build("Llama")
    lean, general = stack_for(model), GeneralStack(model)
    assert isinstance(lean, LlamaStack)
    prompt, tokens = tuple(text(0, 20)), torch.tensor([text(1, 8)])
    found = []
    for stack in (lean, general):
        session = ModelSession(stack)
        session.prefill(Inputs((prompt,)))
        found.append(session.extend(tokens))
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)  # transformers' norms are of fp32


def test_few_rows_are_multiplied_as_chosen_and_the_model_itself_stays_stock() -> None:
    model = build("Qwen3").to(torch.float32)
    stock = {name: vars(module).get("forward") for name, module in model.named_modules()}
    if compiled_product(torch.randn(32, 32), None) is None:
        pytest.skip("products of few rows need a C++ compiler")
    stack = GeneralStack(model, Choice(most_rows=8, least_size=1))
    session = ModelSession(stack)
    session.prefill(Inputs((tuple(text(0, 12)),)))
    given = session.extend(torch.tensor([text(1, 5)]))[0]
    wanted = logits_of(model, [*text(0, 12)[:-1], *text(1, 5)])[-5:]
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-4)
    with_twice = session.head(session.hidden, 2 * stack.head_weight)[0]  # fault: a stand-in of the loop's hides the head
    torch.testing.assert_close(with_twice, 2 * wanted, rtol=0, atol=2e-4)
    assert {name: vars(module).get("forward") for name, module in model.named_modules()} == stock
    assert [one.data_ptr() for one in stack._twin.parameters()] == [one.data_ptr() for one in model.parameters()]


def test_another_process_makes_its_own_stack() -> None:
    stack = stack_for(build("Olmo2"))
    other = pickle.loads(pickle.dumps(stack))
    given = []
    for one in (stack, other):
        session = ModelSession(one)
        session.prefill(Inputs((tuple(text(0, 6)),)))
        given.append(session.extend(torch.tensor([[5, 6]])))
    torch.testing.assert_close(*given, rtol=0, atol=0)


def test_a_cache_that_forgets_its_length_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the tests above are known to catch: what is new stands at the first positions again."""
    model = build("Qwen3")
    stack = stack_for(model)
    monkeypatch.setattr(_Layer, "get_seq_length", lambda self: 0)
    session = ModelSession(stack)
    session.prefill(Inputs((tuple(text(0, 9)),)))
    given = session.extend(torch.tensor([[3]]))[0, 0]
    assert not torch.allclose(given, logits_of(model, [*text(0, 9)[:-1], 3])[-1], atol=1e-3)


@pytest.mark.parametrize("family", ["Gemma3Text", "Llama", "Olmo2", "Qwen3"])
def test_a_familys_norm_is_ours_where_it_computes_the_same(family: str) -> None:
    """In fp32 they all are, also where one is added to the weight; in fp64 none is, since theirs compute in fp32."""
    model = build(family).float()
    for module in model.modules():
        if type(module).__name__.endswith("Norm"):
            nn.init.normal_(module.weight, mean=0.5)
    stack = GeneralStack(model)
    norms = [stack._twin.model.norm, *(layer.post_attention_layernorm for layer in stack._twin.model.layers)]
    assert all(isinstance(norm, Standin) for norm in norms)
    session = ModelSession(stack)
    session.prefill(Inputs((tuple(text(0, 12)),)))
    given = session.extend(torch.tensor([text(1, 5)]))[0]
    wanted = logits_of(model, [*text(0, 12)[:-1], *text(1, 5)])[-5:]
    torch.testing.assert_close(given, wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))
    double = GeneralStack(build(family))._twin.model.norm
    assert not isinstance(double, Standin)


class _OtherFloor(nn.Module):
    """A root mean square norm that adds its floor to the root."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight), 1e-6

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden / (hidden.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


class _Centred(_OtherFloor):
    """A norm that takes the mean off first."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden - hidden.mean(-1, keepdim=True))


def test_a_norm_kept_in_fp32_stays_the_familys_for_other_numbers() -> None:
    """Of an fp16 model, say. Fault: ours works in the dtype of what it is given, and squares beyond it are infinite."""
    module = LlamaRMSNorm(64)
    numbers = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).half()
    numbers[:, :2] = 60000
    wanted, ours = module(numbers), by_our_norm(module)
    assert ours is not None
    assert torch.equal(ours(numbers), wanted)
    assert not torch.equal(rms_norm(module.weight, module.variance_epsilon)(numbers), wanted)


def test_threads_do_not_see_each_others_passes() -> None:
    """Sessions of several threads share a stack. Fault: a pass of one ran the layers that another had asked for."""
    stack = stack_for(build("Qwen3"))
    assert isinstance(stack, GeneralStack)
    assert stack._span is not None
    tokens = text(0, 9)
    wanted = logits_of(stack.model, tokens)[-1]

    def decode() -> torch.Tensor:
        session = ModelSession(stack)
        return session.extend(torch.tensor([session.prefill(Inputs((tuple(tokens),)))]))[0, -1]

    stack._told.weight = torch.zeros(32, VOCABULARY)
    with stack._span.of(0, 1, None), ThreadPoolExecutor(1) as other:
        found = other.submit(decode).result()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("error", "said"), [(TypeError("an image is missing\nhere"), "an image is missing"), (KeyError(), "KeyError")]
)
def test_a_forward_pass_that_wants_something_else_is_refused(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an error that says nothing; a device without memory is not the family's fault."""
    model, errors = build("Qwen3"), [error]

    def forward(*_: Any, **__: Any) -> None:
        raise errors[-1]

    monkeypatch.setattr(type(model.model), "forward", forward)
    with pytest.raises(InputError, match=rf"model type 'qwen3': its forward pass over tokens and a cache fails \({said}\)$"):
        stack_for(model)
    errors.append(torch.OutOfMemoryError("out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        stack_for(model)


@pytest.mark.parametrize("kind", [_OtherFloor, _Centred])
def test_a_norm_of_another_law_stays_the_familys(kind: type[_OtherFloor]) -> None:
    assert by_our_norm(kind(torch.rand(32))) is None


def test_a_family_is_not_laid_on_several_devices() -> None:
    with pytest.raises(InputError, match="model type 'qwen3': transformers runs its layers on one device; leave"):
        stack_for(build("Qwen3")).part(0, 1, torch.device("cpu"))


def test_an_encoder_decoders_layers_run_one_by_one(paired: tuple[Any, GeneralEncoderDecoderStack]) -> None:
    """Those of T5's kin hand on more than hidden states, UMT5's do not."""
    model, stack = paired
    assert stack.runs_layers_alone == (model.config.model_type not in ("longt5", "mt5", "switch_transformers"))
    if not stack.runs_layers_alone:
        return
    session = ModelSession(stack)
    [first] = session.prefill(Inputs((tuple(text(0, 9)),)))
    session.extend(torch.tensor([[first]]))
    tokens = text(1, 5)
    hidden = session.embed(torch.tensor([tokens]))
    for layer in range(3):
        hidden = session.run_layers(hidden, layer, layer + 1)
    with torch.no_grad():
        decoded = torch.tensor([[first, *tokens]])
        wanted = model(input_ids=torch.tensor([text(0, 9)]), decoder_input_ids=decoded).logits[0, -5:]
    torch.testing.assert_close(session.head(hidden)[0], wanted, rtol=0, atol=1e-11 * float(wanted.abs().max()))
