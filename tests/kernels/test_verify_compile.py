"""The Triton kernels compile for an A100 and an H100 without either, and nothing spills out of registers."""

import pytest

pytest.importorskip("triton", reason="Triton runs on Linux only")

from kernels.verify.compiled import CAPABILITIES, Resources, resources, variants

# Every kernel, dtype and flag at least once; `make verify-kernels` compiles all variants.
CHOSEN = (
    "fp32 logits n<8",
    "bf16 filtered log-sum-exp n<8",
    "exact fp32",
    "sigmoid fp16",
    "sigmoid-released bf16",
    "count_digits 1 of 2048 fp16",
    "count_digits 0 of 16384 fp32",
    "find_thresholds fp16",
    "find_thresholds bf16 top-p",
    "find_thresholds fp32 top-p resident",
)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nothing_spills(capability: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    chosen = [variant for variant in variants() if variant.name.endswith(CHOSEN) or variant.name in CHOSEN]
    assert len(chosen) == 16
    rows = [resources(variant, capability) for variant in chosen]
    print("\n".join(row.as_text() for row in rows))
    assert [row.variant for row in rows if row.spill_store_bytes or row.spill_load_bytes] == []
    assert all(0 < row.registers <= 255 for row in rows)
    assert all(0 < row.shared_bytes <= 48 * 1024 for row in rows)


def test_a_line_says_all() -> None:
    line = Resources("draw fp32", 80, 100, 1024, 4, 8).as_text()
    assert " ".join(line.split()) == "sm_80 draw fp32 100 registers 1024 bytes shared 4 + 8 bytes spilled"
