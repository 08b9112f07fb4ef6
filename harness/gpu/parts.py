"""The parts by name, the most valuable first. A part's module is imported where it is measured: one may lack a package."""

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part: its name, the module whose ``items`` it is, what it tells, and the seconds without which it is not begun.

    ``needs`` are packages that a machine may lack; no time is kept for a part that lacks one.
    """

    name: str
    module: str
    title: str
    seconds: float
    needs: tuple[str, ...] = ()

    @property
    def can_run(self) -> bool:
        return all(find_spec(package) is not None for package in self.needs)


PARTS = (
    Part(name="environment", module="environment", title="the device, versions, bandwidth", seconds=10),
    Part(name="checks", module="kernel_checks", title="kernels decide as the reference does", seconds=20),
    Part(name="kernels", module="kernel_times", title="times of the kernels, ours and transformers'", seconds=20),
    Part(name="loops", module="loops", title="loops beside transformers', at the papers' sizes", seconds=40),
    Part(name="tables", module="tables", title="tables of the papers on the toy models", seconds=60, needs=("msgspec",)),
    Part(name="pipeline", module="pipeline", title="PPD with its processes on one device", seconds=30),
    Part(name="audit", module="audit", title="the exactness audit", seconds=150, needs=("msgspec",)),
)
NAMES = tuple(part.name for part in PARTS)
