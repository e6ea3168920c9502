"""Found by processes that a program under `qd_core.compat` starts: importing it puts that module in its place."""

from qd_core.compat import install

install()
