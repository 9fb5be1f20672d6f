"""Imports without garbage collections."""

import gc
import sys

import pytest

from longshore_runtime.large_imports import without_collections


def test_nothing_is_collected_meanwhile_and_everything_as_before_afterwards() -> None:
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_later_collections_leave_out_what_large_imports_have_made_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_before = gc.get_freeze_count()
    try:
        with without_collections():
            monkeypatch.setitem(sys.modules, "a_small_library", sys)
        assert gc.get_freeze_count() == num_before
        with without_collections():
            for number in range(1_000):
                monkeypatch.setitem(sys.modules, f"a_large_library.part_{number}", sys)
        assert gc.get_freeze_count() > num_before
    finally:
        gc.unfreeze()
        if num_before:
            gc.freeze()


def test_an_import_that_fails_turns_collections_on_again() -> None:
    with pytest.raises(ImportError), without_collections():
        import longshore_runtime.nothing  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()


def test_who_has_turned_collections_off_keeps_them_off() -> None:
    gc.disable()
    try:
        with without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
