"""Captures as others' decoders make them: transformers' own generation, and a small speculative decoder with its faults.

Nothing of the project decodes here. Every prompt has LENGTH tokens, so that rows are decoded together without padding.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks import get_task
from tasks.sources.read import read_examples

CHECKPOINTS = Path(__file__).resolve().parents[2] / "results" / "baselines" / "checkpoints"
TARGET, DRAFT = CHECKPOINTS / "llama-target", CHECKPOINTS / "llama-draft"
LENGTH = 8


def load(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def prompts_of(count: int) -> Tensor:
    """[count, LENGTH] the beginnings of toy texts."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    texts = (one.inputs["prompt"] for one in read_examples(get_task("text"), "toy", "test", 4 * count, 0))
    rows = dict.fromkeys(tuple(ids[:LENGTH]) for text in texts if len(ids := tokenizer(text).input_ids) >= LENGTH)
    return torch.tensor(list(rows)[:count])


def draw(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    return probs.argmax(-1) if generator is None else torch.multinomial(probs, 1, generator=generator).squeeze(-1)


@torch.inference_mode()
def plainly(
    model: Any, prompts: Tensor, new: int, generator: torch.Generator | None = None, top_k: int | None = None
) -> Tensor:
    """Decode rows one token at a time, greedily without a generator."""
    read, cache, emitted = prompts, None, []
    for _ in range(new):
        found = model(read, past_key_values=cache, use_cache=True)
        logits = found.logits[:, -1].float()
        least = logits.topk(top_k or 1).values[:, -1:] if top_k else logits.min()
        emitted.append(draw(logits.masked_fill(logits < least, float("-inf")).softmax(-1), generator))
        read, cache = emitted[-1].unsqueeze(1), found.past_key_values
    return torch.stack(emitted, 1)


@torch.inference_mode()
def speculatively(
    models: tuple[Any, Any], prompts: Tensor, new: int, generator: torch.Generator | None = None, stale: bool = False
) -> Tensor:
    """Draft and verify one token a round (Leviathan et al., Algorithm 1). ``stale``: a rejected draft stays in what is read."""
    target, draft = models
    read, emitted = prompts, []
    for _ in range(new):
        wanted, drafted = (model(read).logits[:, -1].float().softmax(-1) for model in (target, draft))
        token = draw(drafted, generator)
        if generator is None:
            emitted.append(wanted.argmax(-1))
        else:
            own = token.unsqueeze(1)
            accept = torch.rand(len(token), generator=generator) * drafted.gather(1, own)[:, 0] <= wanted.gather(1, own)[:, 0]
            residual = (wanted - drafted).clamp(min=0) + 1e-12
            emitted.append(torch.where(accept, token, draw(residual, generator)))
        read = torch.cat((read, (token if stale else emitted[-1]).unsqueeze(1)), 1)
    return torch.stack(emitted, 1)


@torch.inference_mode()
def assisted(models: tuple[Any, Any], prompts: Tensor, new: int) -> Tensor:
    """Greedy assisted generation of transformers, row by row."""
    target, draft = models
    size = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    rows = [
        target.generate(row[None], attention_mask=torch.ones_like(row[None]), assistant_model=draft, **size) for row in prompts
    ]
    return torch.cat(rows)[:, prompts.shape[1] :]


def lines(prompts: Tensor, outputs: Tensor, temperature: float, seeds: Iterable[int], **more: Any) -> list[dict[str, Any]]:
    return [
        {"prompt": prompt, "tokens": output, "temperature": temperature, "seed": seed, **more}
        for prompt, output, seed in zip(prompts.tolist(), outputs.tolist(), seeds, strict=True)
    ]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return path
