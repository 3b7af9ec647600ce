"""The folders in which named grids are searched."""

from __future__ import annotations

import pytest

from gridcoll import gridfiles
from gridcoll.errors import UsageError
from gridcoll.gridfiles import find_gridfile, known_grids


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder where the package is installed. The working directory is another one."""
    package = tmp_path / "site-packages" / "gridcoll"
    package.mkdir(parents=True)
    monkeypatch.setattr(gridfiles, "__file__", str(package / "gridfiles.py"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return package


def put(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / f"{name}.toml").touch()


def test_inside_the_package_where_it_is_installed(package):
    put(package / "hostfiles", "duo", "trio")
    assert known_grids() == ["duo", "trio"]
    assert find_gridfile("duo") == package / "hostfiles" / "duo.toml"
    with pytest.raises(UsageError, match=r"'solo': no such file, and .* known are duo, trio"):
        find_gridfile("solo")


def test_the_users_own_come_first(package, tmp_path):
    put(package / "hostfiles", "duo")
    put(package.parent / "hostfiles", "duo", "beside")
    put(tmp_path / "work" / "hostfiles", "duo", "here")
    assert known_grids() == ["beside", "duo", "here"]
    assert find_gridfile("duo").resolve() == tmp_path / "work" / "hostfiles" / "duo.toml"
    assert find_gridfile("beside") == package.parent / "hostfiles" / "beside.toml"


def test_none_at_all(package):
    with pytest.raises(UsageError, match="known are none"):
        find_gridfile("duo")


def test_a_slip_of_the_pen_is_seen(package):
    put(package / "hostfiles", "three-sites", "three-sites-8", "ocean")
    with pytest.raises(UsageError, match=r"no named grid; ocean is one$"):
        find_gridfile("oceans")
    with pytest.raises(UsageError, match=r"no named grid; known are three-sites, three-sites-8$"):
        find_gridfile("/home/me/three-sits")
