"""Files and folders appear whole or not at all."""

from __future__ import annotations

import pytest

from dlasm.atomic import remove_tree, temporary_of, whole_file, whole_folder, write_json
from dlasm.work import read_json


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with whole_file(path, sync=True) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    with pytest.raises(TypeError), whole_file(path) as file:
        file.write(b"half" + None)
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_folder_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "a"
    for text in ("old", "new"):
        with whole_folder(path, sync=True) as folder:
            (folder / text).mkdir()
            (folder / text / "file").write_text(text)
    with pytest.raises(FileNotFoundError), whole_folder(path) as folder:
        (folder / "half" / "file").touch()
    assert [entry.name for entry in path.iterdir()] == ["new"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_no_parent_is_made(tmp_path):
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "gone" / "a"):
        pass
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "gone" / "a"):
        pass
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "gone" / "a.json", {})
    assert not list(tmp_path.iterdir())


def test_writers_at_once_do_not_meet(tmp_path):
    path = tmp_path / "a"
    with whole_file(path) as one, whole_file(path) as other:
        names = [entry.name for entry in tmp_path.iterdir()]
        one.write(b"one")
        other.write(b"other")
    assert len(set(names)) == 2
    assert {temporary_of(name) for name in names} == {"a"}
    assert path.read_bytes() == b"one"


def test_json_and_removal(tmp_path):
    write_json(tmp_path / "a.json", {"k": [1, None]})
    assert read_json(tmp_path / "a.json") == {"k": [1, None]}
    (tmp_path / "b" / "c").mkdir(parents=True)
    remove_tree(tmp_path / "b")
    remove_tree(tmp_path / "b")
    assert not (tmp_path / "b").exists()
