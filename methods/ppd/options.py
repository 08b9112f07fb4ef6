"""Options of the pipeline; imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from methods.options import MethodOptions, option

EXECUTIONS = ("process", "batched", "simulated")


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(MethodOptions):
    """``early_layer`` and ``candidates`` are chosen from measurements where they are None."""

    takes: ClassVar[tuple[str, ...]] = ("heads",)

    early_layer: int | None = option(None, "where ppd predicts, half the depth or more, or auto", least=1)
    candidates: int | None = option(1, "tokens that ppd begins early, or auto", least=1)
    execution: str = option("process", "process (one a candidate), batched (one for all) or simulated", EXECUTIONS)
