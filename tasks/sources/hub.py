"""Stream rows from the Hugging Face Hub at a pinned commit: only the Parquet files of the split, no loading script."""

from collections.abc import Iterator

from tasks.base import HubFiles, Split
from tasks.errors import DataError
from tasks.sources.files import Located, undecoded

SHUFFLE_BUFFER = 10_000


def hub_rows(files: HubFiles, split: Split, shuffle_seed: int | None) -> Iterator[Located]:
    """Yield rows in file order, or with a seed shuffled through a buffer, so that a small limit downloads little.

    DataError, in one line: the dataset is gone, gated, renamed, or out of reach.
    """
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    name, pattern = f"{files.repository}@{files.revision[:12]}", files.train if split == "train" else files.test
    number = 0
    try:
        rows = datasets.load_dataset(
            files.repository, data_files={split: pattern}, split=split, revision=files.revision, streaming=True
        )
        rows = undecoded(rows)
        for row in rows if shuffle_seed is None else rows.shuffle(seed=shuffle_seed, buffer_size=SHUFFLE_BUFFER):
            number += 1
            yield f"{name}/{pattern}:row {number}", row
    except (OSError, DatasetsError, HfHubHTTPError) as error:
        raise DataError(f"hub {name} ({pattern}): {_reason(error)}; give --data a folder or 'toy' instead") from error


def _reason(error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or [""])[0]
    if "gated" in str(error).lower():
        return f"gated: accept its terms on the Hub and set HF_TOKEN ({first_line[:160]})"
    return f"{type(error).__name__}: {first_line[:200]}"
