"""The module behind the entry point `verl.plugins`: verl 0.9 imports it in every process, driver and Ray workers.

verl drops whatever a plug-in raises into a debug log, and its user then meets only "Unsupported loss mode". So a failure is
printed here, in one line, before it travels on.
"""

from __future__ import annotations

import sys

try:
    from equipoise.adapters.verl import register

    register()
except Exception as problem:  # printed and raised again: nothing is swallowed
    print(
        f"equipoise: the verl plug-in did not load, so verl has no equipoise_* names: {problem} (equipoise doctor says more)",
        file=sys.stderr,
        flush=True,
    )
    raise
