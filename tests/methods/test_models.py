"""The stacks: which models they take, and that re-laid weights are the same weights, once."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from methods.errors import InputError
from methods.models import stack_for
from methods.models.weights import Product
from methods.session import ModelSession

SMALL = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
MIXED = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}


def storage_bytes(model: PreTrainedModel) -> int:
    """Bytes behind the parameters, each storage counted once."""
    storages = {parameter.untyped_storage().data_ptr(): parameter.untyped_storage() for parameter in model.parameters()}
    return sum(storage.nbytes() for storage in storages.values())


def outputs(tiny, model: PreTrainedModel) -> torch.Tensor:
    return tiny.reference_logits(model, [3, 4, 5, 6], [7, 8, 9])


def test_transformers_computes_the_same_with_relaid_weights(tiny, family: str) -> None:
    model = tiny.build(family)
    before = outputs(tiny, model)
    stack_for(model)
    torch.testing.assert_close(outputs(tiny, model), before, rtol=0, atol=1e-10)


def test_parameters_keep_names_shapes_values_and_bytes(tiny, family: str) -> None:
    model, untouched = tiny.build(family), tiny.build(family)
    size = storage_bytes(model)
    stack_for(model)
    assert storage_bytes(model) == size
    for (name, relaid), (other, parameter) in zip(model.named_parameters(), untouched.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(relaid, parameter), name


def test_a_second_stack_shares_the_first_ones_weights(tiny, family: str) -> None:
    model = tiny.build(family)
    first = stack_for(model)
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    second = stack_for(model)
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert first.head_weight.data_ptr() == second.head_weight.data_ptr()
    for one, other in zip(first.layers, second.layers, strict=True):
        products = [(a.weight, b.weight) for a, b in zip(one, other, strict=True) if isinstance(a, Product)]
        assert len(products) >= 4
        assert all(a.data_ptr() == b.data_ptr() and a.stride() == b.stride() for a, b in products)


def test_changed_weights_are_the_sessions_weights(tiny) -> None:
    """The stack reads the model's own storage: an update in place is seen by both."""
    model = tiny.build("llama")
    session = ModelSession(stack_for(model))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(1.1)
    inputs = tiny.source_for(session.stack, [4])
    logits = session.extend(torch.tensor([session.prefill(inputs)]))
    torch.testing.assert_close(logits[0, 0], tiny.reference_logits(model, inputs.prompts[0], ())[-1], rtol=0, atol=1e-9)


def test_the_state_of_a_relaid_model_loads_into_another(tiny, family: str) -> None:
    model, other = tiny.build(family), tiny.build(family, spread=0.2)
    stack_for(model)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(outputs(tiny, other), outputs(tiny, model), rtol=0, atol=1e-10)


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(InputError, match=r"'llama' \(LlamaModel\): it has no language modelling head"):
        stack_for(LlamaModel(LlamaConfig(**SMALL)))


def test_rope_that_changes_with_the_length_is_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=rope))
    with pytest.raises(InputError, match="rope_type 'dynamic' of model type 'llama': its angles change with the length"):
        stack_for(model)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(InputError, match="activation 'tanh' of model type 'llama': expected one of silu"):
        stack_for(LlamaForCausalLM(LlamaConfig(**SMALL, hidden_act="tanh")))


def test_an_encoder_decoder_without_a_start_token_is_refused() -> None:
    model = T5ForConditionalGeneration(T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(InputError, match="decoder_start_token_id of model type 't5': expected a token id, found none"):
        stack_for(model)


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        (LlamaForCausalLM(LlamaConfig(**SMALL, max_position_embeddings=99)), 99),
        (MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=99, sliding_window=9)), 99),
        (MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=9, sliding_window=99)), 9),
        (Qwen2ForCausalLM(Qwen2Config(**SMALL, num_key_value_heads=1, max_position_embeddings=99, sliding_window=9)), 99),
        (Qwen2ForCausalLM(Qwen2Config(**SMALL, **MIXED, num_key_value_heads=1, max_position_embeddings=99)), 9),
    ],
)
def test_the_position_limit_is_that_of_positions_unless_only_some_layers_slide(model: PreTrainedModel, limit: int) -> None:
    assert stack_for(model).position_limit == limit


@pytest.mark.parametrize("kind", ["t5", "t5-gated", "bart", "marian"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_sources_are_encoded_as_transformers_encodes_them(tiny, kind: str, dtype: torch.dtype) -> None:
    """Longer than the distances that T5 tells apart, and with padding."""
    model = tiny.build(kind).to(dtype)
    tokens = torch.randint(3, 16, (2, 40), generator=torch.Generator().manual_seed(1))
    padded = torch.ones(2, 40, dtype=torch.long)
    padded[1, 25:] = 0
    for mask in (None, padded):
        with torch.inference_mode():
            right = model.get_encoder()(input_ids=tokens, attention_mask=mask).last_hidden_state
            found = stack_for(model).encode(tokens, mask)
        seen = padded.bool() if mask is not None else padded >= 0
        error = (found[seen].double() - right[seen].double()).abs().max()
        assert error <= (1e-5 if dtype == torch.float64 else 0.02) * right[seen].double().abs().max()


def test_t5_has_no_position_limit(tiny) -> None:
    assert stack_for(tiny.build("t5")).position_limit is None
