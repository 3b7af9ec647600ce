"""Programs in C that are built once for the tests of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.programs import Toolchain

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def build(folder: Path) -> Callable[..., Path]:
    """Build a file beside this one, once per MPI."""

    def build_one(tools: Toolchain, name: str) -> Path:
        path = folder / f"{name}-{tools.mpi}"
        return (
            path
            if path.exists()
            else tools.build((HERE / f"{name}.c").read_text(), folder, path.name)
        )

    return build_one
