"""The Linux system calls that a testbed needs and that Python 3.10 lacks."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gridcoll.errors import TestbedError

CLONE_NEW = {
    "mnt": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "net": 0x40000000,
    "pid": 0x20000000,
}
"""Namespace kinds by the names they have in ``/proc/PID/ns``."""

HOST_NAMESPACES = ("net", "uts", "ipc", "mnt")
"""The namespaces that each host has of its own. The mount namespace is entered last."""

_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_MS_BIND = 0x1000
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_PR_SET_TIMERSLACK = 29

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(*kinds: str) -> None:
    """Give this process new namespaces of these ``kinds`` (keys of `CLONE_NEW`)."""
    flags = 0
    for kind in kinds:
        flags |= CLONE_NEW[kind]
    _checked(_libc.unshare(flags), f"unshare {'+'.join(kinds)}")


def setns(fd: int, kind: str) -> None:
    """Enter the namespace that ``fd`` is open on (for ``pid``: only children will be in it)."""
    _checked(_libc.setns(fd, CLONE_NEW[kind]), f"setns {kind}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    _checked(
        _libc.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
        ),
        f"mount {source} on {target}",
    )


def make_mounts_private() -> None:
    """Hide later mounts of this mount namespace from all others."""
    mount("none", "/", flags=_MS_REC | _MS_PRIVATE)


def bind_mount(source: Path, target: Path) -> None:
    mount(str(source), str(target), flags=_MS_BIND)


def set_timer_slack(slack_ns: int) -> None:
    """Let sleeps of this process end at most ``slack_ns`` late (the kernel's default is 50 µs)."""
    _checked(_libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0), "prctl")


def sethostname(name: str) -> None:
    socket.sethostname(name)


def open_namespace(kind: str, pid: int | str = "self") -> int:
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def nsenter_options(namespaces: Mapping[str, int], pid: int) -> list[str]:
    """Return options that make ``nsenter`` enter ``namespaces``, open as descriptors of ``pid``."""
    names = {"mnt": "mount"}
    return [f"--{names.get(kind, kind)}=/proc/{pid}/fd/{fd}" for kind, fd in namespaces.items()]


@contextmanager
def inside(namespaces: Mapping[str, int]) -> Iterator[None]:
    """Run the body with this thread in other namespaces (descriptors by kind), then return.

    Sockets opened in the body stay in the namespace where they were opened.
    """
    back = {kind: open_namespace(kind, "thread-self") for kind in namespaces}
    try:
        for kind, fd in namespaces.items():
            setns(fd, kind)
        yield
    finally:
        for kind, fd in back.items():
            setns(fd, kind)
            os.close(fd)


def open_tun(name: str) -> int:
    """Open a new TUN device. Packets have a virtio header and may be as large as TCP makes them."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return fd


def check_privileges() -> None:
    """Raise `TestbedError` if this machine or user cannot build a testbed, naming what it lacks."""
    if not hasattr(socket, "AF_NETLINK"):
        raise TestbedError("testbed: needs Linux network namespaces, which this system has not")
    if os.geteuid() != 0:
        raise TestbedError(
            f"testbed: needs root to make network namespaces, got user id {os.geteuid()}; "
            "run it with sudo"
        )
    for kind in CLONE_NEW:
        if not Path(f"/proc/self/ns/{kind}").exists():
            raise TestbedError(f"testbed: this kernel has no {kind} namespaces (CONFIG_NAMESPACES)")
    if not Path("/dev/net/tun").exists():
        raise TestbedError(
            "testbed: /dev/net/tun is missing; load the module (modprobe tun) or make the "
            "device (mkdir -p /dev/net; mknod /dev/net/tun c 10 200)"
        )
    if shutil.which("nsenter") is None:
        raise TestbedError("testbed: needs nsenter, of the package util-linux")
    try:
        import pyroute2  # noqa: F401
    except ImportError:
        raise TestbedError("testbed: needs the package pyroute2; pip install pyroute2") from None
    _try_namespaces()


def _try_namespaces() -> None:
    """Raise `TestbedError` if root may not make namespaces, as may be the case in a container."""
    pid = os.fork()
    if pid == 0:
        try:
            unshare(*CLONE_NEW)
            os.close(os.open("/dev/net/tun", os.O_RDWR))
            os._exit(0)
        except OSError as error:
            os._exit(min(error.errno or 1, 125))
    _, status = os.waitpid(pid, 0)
    number = os.waitstatus_to_exitcode(status)
    if number:
        raise TestbedError(
            f"testbed: this root may not make namespaces or open /dev/net/tun "
            f"({os.strerror(number)}); a container needs CAP_SYS_ADMIN, CAP_NET_ADMIN and "
            "/dev/net/tun"
        )
