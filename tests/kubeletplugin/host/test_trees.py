"""Folders that containers may write to: removed as a whole, and nothing beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubeletplugin.host.trees import remove_tree


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "claim"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/file").write_text("x")
    os.mkfifo(folder / "a/pipe")
    remove_tree(folder)
    assert not folder.exists()


@pytest.mark.parametrize("to", ["beside", "beside/file", "nothing"])
def test_what_links_point_to_stays(tmp_path: Path, to: str) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/file").write_text("x")
    folder = tmp_path / "claim"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / to)
    remove_tree(folder)
    assert not folder.exists()
    assert (tmp_path / "beside/file").read_text() == "x"


def test_a_folder_that_is_itself_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/file").write_text("x")
    (tmp_path / "claim").symlink_to(tmp_path / "beside")
    with pytest.raises(OSError, match="claim"):
        remove_tree(tmp_path / "claim")
    assert (tmp_path / "beside/file").read_text() == "x"


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "claim")
