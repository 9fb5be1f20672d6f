"""The choice between the versions of FlashAttention that torch can call."""

from pathlib import Path

import pytest
from torch.nn.attention import list_flash_attention_impls

from longshore_runtime.backends.flash_attention import newest_flash_attention


def test_a_newer_version_is_used_where_it_is_installed_and_fits_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [newest_flash_attention(major) for major in (8, 9, 10, 12)] == [None] * 4
    (tmp_path / "flash_attn_interface.py").touch()
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    found = [newest_flash_attention(major) for major in (8, 9, 10, 12)]
    assert found == [None, "FA3", "FA4", None]
    assert {*found} - {None} <= {*list_flash_attention_impls()}
