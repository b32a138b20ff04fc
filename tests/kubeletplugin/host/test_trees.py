"""Folders that containers may write to: removed as a whole, and nothing beside them."""

from __future__ import annotations

import inspect
import os
import resource
import sys
from pathlib import Path

import pytest

from kubeletplugin.errors import HostError
from kubeletplugin.host.roots import Roots
from kubeletplugin.host.trees import make_bounded, remove_tree
from tests.helpers.folders import mounts_below


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "claim"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/file").write_text("x")
    os.mkfifo(folder / "a/pipe")
    remove_tree(folder)
    assert not folder.exists()


def test_what_links_point_to_stays(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/file").write_text("x")
    folder = tmp_path / "claim"
    folder.mkdir()
    for number, to in enumerate(("beside", "beside/file", "nothing")):
        (folder / str(number)).symlink_to(tmp_path / to)
    remove_tree(folder)
    assert not folder.exists()
    assert (tmp_path / "beside/file").read_text() == "x"


def test_folders_nested_deeper_than_python_calls_and_files_may_be_open_go(tmp_path: Path) -> None:
    """As a tenant can nest them: one folder after the other, in the last one.

    Fewer here, with lower limits, so that what is left of a failure can be removed. Files of other
    tests may be open in this process: the limit is above them, the nesting deeper than the rest.
    """
    used = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    files = max(used) + 20
    folder = tmp_path / "claim"
    folder.mkdir()
    inside = os.open(folder, os.O_RDONLY)
    for _ in range(max(600, files - len(used) + 100)):
        os.mkdir("d", dir_fd=inside)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inside))
        outer, inside = inside, os.open("d", os.O_RDONLY, dir_fd=inside)
        os.close(outer)
    os.close(inside)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        remove_tree(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        sys.setrecursionlimit(limit)
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_bound_that_the_host_does_not_see_is_refused_with_the_remedy(folder: Path) -> None:
    claim, host = folder / "claim", roots(folder / "host")
    host.on_host(str(claim)).mkdir(parents=True)
    with pytest.raises(HostError, match="mountPropagation: Bidirectional"):
        make_bounded(host, claim, mebibytes=1, inodes=16)
    assert mounts_below(folder) == []


def roots(host: Path) -> Roots:
    return Roots(host, Path("/"), host / "cdi", host / "kubelet", host / "state")


def test_a_folder_that_is_itself_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/file").write_text("x")
    (tmp_path / "claim").symlink_to(tmp_path / "beside")
    with pytest.raises(OSError, match="claim"):
        remove_tree(tmp_path / "claim")
    assert (tmp_path / "beside/file").read_text() == "x"
