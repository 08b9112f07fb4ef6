"""Where parts are measured and how much of them: on a device, in a rehearsal without one, or in the smallest rehearsal."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kernels.verify.check import ONE_TILE

Scale = Literal["device", "whole", "smallest"]  # the last two are rehearsals
SCALES: tuple[Scale, ...] = ("device", "whole", "smallest")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much each part measures.

    copy_bytes: of the buffer whose copy gives the bandwidth. random_rows: of a kernel and dtype, mostly at vocabularies up to
    ONE_TILE; vocabularies, rows_each: as many rows with each kind of filter at real vocabularies; many_rows: in one batch.
    shapes: (batch, gamma, vocabulary, top-k) that kernels are timed at, each so often (repeats), with so many calls a graph.
    real_models: of the papers' sizes; else the same families, a few dozen numbers wide. prompt_tokens, new_tokens, prompts:
    of the loops and the pipeline. tables: (number, examples). audited: pairs of models, or methods, whose subjects are audited;
    samples: of each sampled one (None: as usual).
    """

    copy_bytes: int
    dtypes: tuple[str, ...]
    random_rows: int
    vocabularies: tuple[int, ...]
    rows_each: int
    many_rows: int
    shapes: tuple[tuple[int, int, int, int | None], ...]
    repeats: int
    calls_per_graph: int
    real_models: bool
    prompt_tokens: int
    new_tokens: int
    prompts: int
    tables: tuple[tuple[int, int], ...]
    table_dtypes: tuple[str, ...]
    audited: tuple[str, ...]
    samples: int | None


HALF = ("float16", "bfloat16")
AUDITED = ("GPT", "GPT with Llama's words", "Llama", "T5", "SpecDec", "Heads", "PPD's Llama", "Whisper")
SIZES: dict[Scale, Sizes] = {
    "device": Sizes(
        copy_bytes=2**30,
        dtypes=("float32", *HALF),
        random_rows=1000,
        vocabularies=(32_000, 32_128, 51_865, 128_256, 151_936),  # Llama 2, T5, Whisper, Llama 3, Qwen 2
        rows_each=8,
        many_rows=512,
        shapes=(
            (1, 5, 32_000, None),
            (1, 5, 32_000, 50),
            (64, 5, 151_936, None),
            (16, 5, 32_000, None),
            (32, 8, 128_256, None),
            (1, 5, 51_865, None),
            (1, 5, 151_936, 50),
        ),
        repeats=5,
        calls_per_graph=10,
        real_models=True,
        prompt_tokens=256,
        new_tokens=128,
        prompts=4,
        tables=((8, 8), (10, 8), (12, 8), (30, 4), (31, 4), (32, 4), (33, 4)),
        table_dtypes=HALF,
        audited=AUDITED,
        samples=None,
    ),
    "whole": Sizes(
        copy_bytes=2**24,
        dtypes=("float32", *HALF),
        random_rows=20,
        vocabularies=(1500, 4500),
        rows_each=1,
        many_rows=20,
        shapes=((1, 5, 1000, None), (1, 5, 1000, 50), (8, 5, 4000, None)),
        repeats=2,
        calls_per_graph=2,
        real_models=False,
        prompt_tokens=24,
        new_tokens=16,
        prompts=1,
        tables=((8, 1), (10, 1), (12, 1), (30, 1), (31, 1), (32, 1), (33, 1)),
        table_dtypes=("bfloat16",),
        audited=tuple(f"{pair}: speculative / model / speculative-sampling" for pair in ("GPT", "T5")),
        samples=250,
    ),
    "smallest": Sizes(
        copy_bytes=2**20,
        dtypes=("float16",),
        random_rows=10,
        vocabularies=(1500,),
        rows_each=1,
        many_rows=4,
        shapes=((1, 2, 500, 50),),
        repeats=1,
        calls_per_graph=1,
        real_models=False,
        prompt_tokens=8,
        new_tokens=8,
        prompts=1,
        tables=((8, 1),),
        table_dtypes=("float32",),
        audited=("speculative / model / exact",),
        samples=250,
    ),
}
assert min(min(sizes.vocabularies) for sizes in SIZES.values()) > ONE_TILE  # real vocabularies have several tiles


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device (``name`` as its driver has it), what is measured there, and at which code.

    ``folder`` holds the files of the parts; ``records`` those of tables and audits, which are no part of the result.
    """

    device: str
    name: str
    scale: Scale
    code: str
    folder: Path
    records: Path

    @property
    def is_rehearsal(self) -> bool:
        return self.scale != "device"

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.scale]

    @property
    def identity(self) -> dict[str, Any]:
        """What files of a part must have been made with to be gone on from."""
        return {"device": self.name, "scale": self.scale, "code": self.code, "sizes": _listed(asdict(self.sizes))}


def _listed(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, Mapping):
        return {name: _listed(one) for name, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, list | tuple) else value


Measured = Mapping[str, Any]  # facts: {name: value}; rows: [{name: value}]; text; notes: [text]; passed: whether it is right


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that a part measures. ``seconds``: what it takes on a device, about; with less left it is not begun."""

    name: str
    seconds: float
    measure: Callable[[], Measured]
