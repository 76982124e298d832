"""Where data and cache lie, and the check of the disk (case B69)."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from eagle_repro.sources import paths

Usage = namedtuple("Usage", "total used free")


def test_cache_is_the_variable_or_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in (
        lambda: monkeypatch.delenv("EAGLE_REPRO_CACHE", raising=False),
        lambda: monkeypatch.setenv("EAGLE_REPRO_CACHE", ""),
    ):
        unset()
        assert paths.cache_folder() == tmp_path / ".cache/eagle_repro"
    monkeypatch.setenv("EAGLE_REPRO_CACHE", "~/elsewhere")
    assert paths.cache_folder() == tmp_path / "elsewhere"


def test_data_lie_in_the_wheel_or_beside_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site/eagle_repro"
    monkeypatch.setattr(paths, "PACKAGE", package)
    (tmp_path / "site/data").mkdir(parents=True)  # somebody else's
    with pytest.raises(FileNotFoundError, match="install the wheel again"):
        paths.data_folder()
    (tmp_path / "site/data/heads").mkdir()
    assert paths.data_folder() == tmp_path / "site/data"
    (package / "data/heads").mkdir(parents=True)
    assert paths.data_folder() == package / "data"


def test_full_disk_is_told_with_both_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []

    def usage(place: Path) -> Usage:
        asked.append(Path(place))
        return Usage(10**10, 0, 10**9)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(paths.NotEnoughSpace, match=r"downloading X needs 4\.1 GB .* has 1\.0 GB free"):
        paths.require_space(tmp_path / "not/there/yet", 4_100_000_000, "downloading X")
    paths.require_space(tmp_path / "not/there/yet", 10**9, "downloading X")
    assert set(asked) == {tmp_path}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999_999, "999999 bytes"), (98_362_432, "98.4 MB"), (2 * 10**9, "2.0 GB")]
)
def test_sizes_are_printed_in_powers_of_ten(count: int, text: str) -> None:
    assert paths.in_units(count) == text
