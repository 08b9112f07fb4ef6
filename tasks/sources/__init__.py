"""Where rows come from: the generated world, the Hub, or a file or folder; see ``dataset.Dataset`` for the common shape."""

from tasks.sources.dataset import Dataset, HubFiles
from tasks.sources.read import fingerprint_of, read_examples

__all__ = ["Dataset", "HubFiles", "fingerprint_of", "read_examples"]
