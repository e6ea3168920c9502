"""``python -m qd_core.compat run (SCRIPT | -m MODULE) [ARGUMENTS]``.

The program becomes this process's own, as if Python had been called with it: it may spawn others that import it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from qd_core.compat import install

USAGE = "usage: python -m qd_core.compat run (SCRIPT | -m MODULE) [ARGUMENTS]"


def main(arguments: Sequence[str]) -> int:
    """Run a script or module in which ``import quadrants`` means this package; return 2 where the words are wrong."""
    words = list(arguments)
    program = words[1:]
    if words[:1] != ["run"] or not program or program == ["-m"]:
        print(USAGE, file=sys.stderr)
        return 2
    install()
    command = [sys.executable, *(f"-W{w}" for w in sys.warnoptions), *program]
    if os.name == "posix":
        sys.stdout.flush()
        os.execv(sys.executable, command)
    return subprocess.call(command)  # there, exec starts another process and ends this one


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
