# SPDX-License-Identifier: Apache-2.0
"""The ClientApp shim: light to import, and as strict as the server."""

from __future__ import annotations

import subprocess
import sys


def test_neither_app_imports_torch_opacus_or_numba():
    code = (
        "import sys, shoal_client.app, shoal_server.app; "
        "print([m for m in ('torch', 'opacus', 'numba', 'ray', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
