"""What decides whether there can be a testbed at all; none of this needs one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gridcoll.errors import TestbedError
from gridcoll.testbed import linux


def test_root_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match=r"needs root .* got user id 1000; run it with sudo"):
        linux.check_privileges()


class TestAsRoot:
    @pytest.fixture(autouse=True)
    def root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 0)

    @pytest.mark.parametrize(
        ("missing", "told"),
        [("/dev/net/tun", "modprobe tun"), ("/proc/self/ns/net", "no net namespaces")],
    )
    def test_what_the_kernel_lacks_is_named(
        self, monkeypatch: pytest.MonkeyPatch, missing: str, told: str
    ) -> None:
        monkeypatch.setattr(Path, "exists", lambda path: str(path) != missing)
        with pytest.raises(TestbedError, match=told):
            linux.check_privileges()

    def test_a_missing_tool_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Path, "exists", lambda path: True)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        with pytest.raises(TestbedError, match="nsenter, of the package util-linux"):
            linux.check_privileges()

    def test_rights_it_has_not_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*kinds: str) -> None:
            raise PermissionError(1, "no")

        monkeypatch.setattr(Path, "exists", lambda path: True)
        monkeypatch.setattr(linux, "unshare", refuse)
        with pytest.raises(TestbedError, match=r"not permitted.*CAP_SYS_ADMIN"):
            linux.check_privileges()
