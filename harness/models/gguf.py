"""GGUF files: models with quantised weights, dequantised once into an ordinary folder of the cache.

transformers reads them for the families that it knows. What it returns cannot be saved, so its weights are put into a plain
model. The package ``gguf``, torch and transformers are imported where they are called: they take seconds.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from os.path import expanduser
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.files import digest_of, replace_file, short_hash
from harness.core.messages import first_line
from harness.models.limits import check_settings
from harness.zoo.cache import DONE, is_complete, make, model_folder, quiet, verify

CODE_VERSION = 1  # of the conversion: part of what a converted model is
SUFFIX = ".gguf"
WIDE = ("F32", "F64")  # norms are always stored so
NOT_QUANTISED = (*WIDE, "F16", "BF16")
DERIVED = "rope_"  # tensors that begin so are tables of angles, no weights
PERMUTED = "llama."  # the family whose rows of queries and keys lie in another order than in transformers
OUTPUT = "output.weight"  # the embedding once more in files of models that tie the two, as llama.cpp writes BLOOM and Falcon
SPLITS_DIGITS = ("smollm",)  # of tokenizer.ggml.pre: each digit is a piece of its own, which transformers' reader leaves out


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a local name means: the file, or the only one of a folder without config.json. None for other names.

    Raises:
        UsageError: no such file, or a folder with several.
    """
    path = Path(expanduser(name))
    if path.is_dir():
        files = [] if (path / "config.json").exists() else sorted(path.glob(f"*{SUFFIX}"))
        if len(files) > 1:
            raise UsageError(f"model folder {path}: {len(files)} GGUF files and no config.json; name one, such as {files[0]}")
        return files[0] if files else None
    if path.suffix != SUFFIX:
        return None
    if not path.is_file():
        raise UsageError(f"model {name!r}: no such file; expected a GGUF file")
    return path


def gguf_revision(file: Path) -> str:
    """sha256 (16 digits) over a file's contents, and over how it is converted."""
    return short_hash(f"{CODE_VERSION} {digest_of(file)}")


def converted(file: Path) -> Path:
    """Return the folder of the cache with a file's dequantised weights, converted now if it is not there.

    Raises:
        UsageError: the file cannot be read, or the cache not be written.
    """
    folder = model_folder("gguf", gguf_revision(file))
    if not is_complete(folder):
        print(f"foretoken: converting {file} into the cache, once", file=sys.stderr, flush=True)
        make(folder, partial(_fill, file))
    verify(folder)
    return folder


def _fill(file: Path, folder: Path) -> None:
    weights = convert(file, folder)
    replace_file(folder / DONE, json.dumps({"source": file.name, "sha256": digest_of(file), "weights": weights}, indent=1))


def convert(file: Path, folder: Path) -> str:
    """Write model and tokenizer as save_pretrained does, weights in fp32; return what they were made of.

    Raises:
        UsageError: the file cannot be read as a whole model.
        OSError, SafetensorError: the folder cannot be written.
    """
    try:
        with quiet():
            weights, pre, sizes = _header(file)
            model, tokenizer = _plain_model(file, sizes), _tokenizer(file, pre)
    except ImportError as error:
        raise UsageError(f"GGUF file {file}: a package is missing ({error}); run: pip install gguf") from error
    except Exception as error:  # what a reader does with bytes that it did not expect cannot be listed
        raise unreadable_gguf(file, first_line(error)) from error
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return weights


def unreadable_gguf(file: Path, reason: str) -> UsageError:
    return UsageError(
        f"GGUF file {file}: cannot be read ({reason}); expected a whole file of a family that transformers reads; copy "
        "it again, or convert the model with save_pretrained"
    )


def _header(file: Path) -> tuple[str, str | None, dict[str, int]]:
    """(number formats of the weights, most of them first, kind of tokenizer, number of weights in each tensor).

    ValueError for a tensor that does not begin where the one before it ends: its bytes would be read as other numbers.
    """
    from gguf import GGUFReader

    reader, counts = GGUFReader(file), Counter[str]()
    end = reader.data_offset
    for tensor in reader.tensors:
        if tensor.data_offset != end:
            raise ValueError(f"tensor {tensor.name!r} begins at byte {tensor.data_offset}, the one before it ends at {end}")
        end += -(-int(tensor.n_bytes) // reader.alignment) * reader.alignment
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    names = [name for name, _ in counts.most_common() if name not in WIDE] or ["F32"]
    suffix = "" if set(names) <= set(NOT_QUANTISED) else " dequantised"
    family = reader.fields.get("general.architecture")
    shared_heads = f"{'' if family is None else family.contents()}.attention.head_count_kv"
    if shared_heads.startswith(PERMUTED) and shared_heads not in reader.fields:
        raise ValueError(
            f"its metadata have no {shared_heads}, without which transformers leaves rows of keys in another order"
        )
    pre = reader.fields.get("tokenizer.ggml.pre")
    sizes = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors if not tensor.name.startswith(DERIVED)}
    return " and ".join(names) + suffix, None if pre is None else pre.contents(), sizes


def _plain_model(file: Path, sizes: Mapping[str, int]) -> Any:
    """Read a model of as many weights as the file stores, and put them into a plain one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    place: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    config = AutoConfig.from_pretrained(**place)
    check_settings(config, "metadata")
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    stored = sum(size for name, size in sizes.items() if not (config.tie_word_embeddings and name == OUTPUT))
    with torch.device("meta"):
        asked = sum(weight.numel() for weight in kind.from_config(config).parameters())
    if not stored <= asked <= 2 * stored:  # fewer: transformers would pass over the rest; many more: memory would be filled
        raise ValueError(f"its metadata ask for {asked:,} weights, its tensors hold {stored:,}")
    model, found = kind.from_pretrained(**place, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, found[what])):
            raise ValueError(f"{what.removesuffix('_keys')} tensor {names[0]}, one of {len(names)}")
    settings = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    with torch.device("meta"):
        plain = type(model)(type(model.config).from_dict(settings))
    plain.load_state_dict(model.state_dict(), strict=True, assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _tokenizer(file: Path, pre: str | None) -> Any:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if pre in SPLITS_DIGITS:
        pieces = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(pieces)
    return tokenizer
