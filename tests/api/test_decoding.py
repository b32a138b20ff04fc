"""Types are ready to be read before there is a second thread."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil
import msgspec, msgspec._utils

looked = []
look = msgspec._utils._get_class_mro_and_typevar_mappings

def noted(kind):
    looked.append(kind)
    return look(kind)

msgspec._utils._get_class_mro_and_typevar_mappings = noted
for name in ("api", "dra", "cdi", "controller", "kubeletplugin", "cli", "sim"):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
found, kinds = [msgspec.Struct], []
for kind in found:
    found += (below := kind.__subclasses__())
    kinds += [kind] * (not below and not kind.__module__.startswith("msgspec"))
print(len(kinds), *(f"{k.__module__}.{k.__name__}" for k in kinds if k not in looked))
"""
"""Prints how many types there are, and those that nobody has looked through after all imports."""


def test_each_type_is_looked_through_while_its_module_is_imported() -> None:
    """Two threads that are the first to read one end the process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    count, *late = done.stdout.decode().split()
    assert int(count) > 50
    assert not late
