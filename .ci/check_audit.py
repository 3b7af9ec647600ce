"""Check that a wheel runs on every Linux that its name promises.

python -m auditwheel show --json WHEEL | python .ci/check_audit.py
"""

from __future__ import annotations

import json
import re
import sys

PROMISED = re.compile(r"manylinux_2_17_(x86_64|aarch64)")
"""Linux since 2014, on the machines for which there are wheels."""


def faults_of_audit(output: str) -> list[str]:
    """Return why the wheel is not portable, given the output of ``auditwheel show --json``."""
    try:
        audit = json.loads(output)
        name, tag, libraries = audit["wheel"], audit["overall_tag"], audit["external_libs"]
    except (ValueError, KeyError, TypeError) as error:
        return [f"auditwheel said nothing of a wheel ({type(error).__name__}: {error})"]
    faults = []
    if not PROMISED.fullmatch(str(tag)):
        faults.append(f"{name}: is {tag}, must be manylinux_2_17")
    if not name.endswith(f"-py3-none-{tag}.whl"):
        faults.append(f"{name}: its name says another platform than {tag}, or needs a Python")
    if libraries:
        faults.append(f"{name}: needs libraries of others: {', '.join(sorted(libraries))}")
    return faults


def main() -> None:
    faults = faults_of_audit(sys.stdin.read())
    for fault in faults:
        print(f"not portable: {fault}")
    if faults:
        sys.exit(1)
    print("auditwheel: fits every Linux with glibc 2.17")


if __name__ == "__main__":
    main()
