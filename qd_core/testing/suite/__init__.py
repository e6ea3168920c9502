"""What a backend must do: tests that run on any device.

In a backend's repository, ``tests/test_conformance.py`` is one line::

    from qd_core.testing.suite import *
"""

from __future__ import annotations

from qd_core.testing.suite.atomics import *  # noqa: F403
from qd_core.testing.suite.claims import *  # noqa: F403
from qd_core.testing.suite.control import *  # noqa: F403
from qd_core.testing.suite.elementwise import *  # noqa: F403
from qd_core.testing.suite.gradients import *  # noqa: F403
from qd_core.testing.suite.launcher import *  # noqa: F403
from qd_core.testing.suite.memory import *  # noqa: F403
from qd_core.testing.suite.messages import *  # noqa: F403
from qd_core.testing.suite.op_gradients import *  # noqa: F403
from qd_core.testing.suite.refused import *  # noqa: F403
