"""COMET (Rei et al. 2020) by the command of ``unbabel-comet``, which lives in an environment of its own.

unbabel-comet 2.2 needs transformers below 5, numpy below 2 and huggingface-hub below 1, so it cannot be installed beside this
project and is no extra of it: what is called is its command ``comet-score``, wherever the PATH has it.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.measures.statistics import Missing

COMMAND = "comet-score"
CHECKPOINT = "Unbabel/wmt20-comet-da"  # the paper's, under the name that the Hub has it by
ABSENT = (
    f"COMET needs the command {COMMAND} on the PATH: install unbabel-comet in an environment of its own (it needs transformers "
    f"< 5); it fetches the checkpoint {CHECKPOINT} from the Hub"
)


def is_installed() -> bool:
    return shutil.which(COMMAND) is not None


def comet_scores(sources: tuple[str, ...], outputs: tuple[str, ...], references: tuple[str, ...]) -> list[float] | Missing:
    """Return one score a sentence; refused with the command's last line where it fails, as it does without its checkpoint."""
    with TemporaryDirectory() as folder:
        names = {"source": sources, "output": outputs, "reference": references}
        files = {name: _write(Path(folder) / name, texts) for name, texts in names.items()}
        scores = Path(folder) / "scores.json"
        command = [COMMAND, "-s", files["source"], "-t", files["output"], "-r", files["reference"], "--model", CHECKPOINT]
        done = subprocess.run(
            [*command, "--gpus", "0", "--only_system", "--quiet", "--to_json", str(scores)], capture_output=True, text=True
        )
        if done.returncode != 0 or not scores.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            return Missing(f"{COMMAND} failed: {lines[-1].strip() if lines else f'exit status {done.returncode}'}")
        return [float(row["COMET"]) for row in json.loads(scores.read_text(encoding="utf8"))[files["output"]]]


def _write(path: Path, texts: Sequence[str]) -> str:
    """One sentence a line."""
    path.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf8")
    return str(path)
