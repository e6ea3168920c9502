"""Cost of launches whose arguments are read member by member.

    python benchmarks/launch_members.py

Prints microseconds a launch (best of 20 rounds) for a kernel over fields, a method, and a dataclass argument of six
dataclasses with 80 members of which the kernel reads ten.
"""

from __future__ import annotations

import dataclasses
import json
import timeit
from typing import Any

import qd_core as qd

ROUNDS, LAUNCHES = 20, 5000
Array = qd.types.ndarray(dtype=qd.f32, ndim=1)


def microseconds(launch: Any) -> float:
    """Best time of a launch."""
    for _ in range(4):
        launch()
    return min(timeit.repeat(launch, number=LAUNCHES, repeat=ROUNDS)) / LAUNCHES * 1e6


def over_fields() -> float:
    """A kernel that adds to 20 fields."""
    fields = [qd.field(qd.f32, shape=1) for _ in range(20)]

    @qd.kernel
    def k():
        for f in qd.static(fields):
            f[0] += 1

    return microseconds(k)


@qd.data_oriented
class Simulation:
    """A field, an array, a number and a function."""

    def __init__(self) -> None:
        self.n, self.x, self.y = 3, qd.field(qd.f32, shape=4), qd.ndarray(qd.f32, 4)

    @qd.func
    def scaled(self, i):
        """Read a number."""
        return self.n * i

    @qd.kernel
    def step(self):
        """Read two arrays."""
        self.x[0] += self.scaled(2)
        self.y[0] += 1


def of_dataclasses() -> float:
    """Six dataclasses in a seventh: 80 members, ten of them read."""
    kinds = [
        dataclasses.make_dataclass(f"Part{k}", [(f"m{i}", Array if i % 2 else qd.f32) for i in range(13)])
        for k in range(6)
    ]
    members = [(f"d{k}", kind) for k, kind in enumerate(kinds)]
    whole = dataclasses.make_dataclass("Whole", [*members, ("n", qd.i32), ("z", Array)])
    parts = [kind(*[qd.ndarray(qd.f32, 4) if i % 2 else float(i) for i in range(13)]) for kind in kinds]
    argument = whole(*parts, 2, qd.ndarray(qd.f32, 4))

    @qd.kernel
    def k(o: whole):
        for _ in range(1):
            o.d0.m1[0] += o.d0.m2 + o.d1.m2 + o.n
            o.d1.m1[0] += o.d2.m2 * o.d3.m4
            o.d4.m3[0] += o.d5.m5[0]
            o.z[0] += 1

    return microseconds(lambda: k(argument))


def main() -> None:
    """Measure and print."""
    qd.init(arch=qd.cpu, log_level="error")
    simulation = Simulation()
    results = {
        "20 fields": over_fields(),
        "method": microseconds(simulation.step),
        "10 of 80 members": of_dataclasses(),
    }
    print(json.dumps({name: round(value, 3) for name, value in results.items()}))


if __name__ == "__main__":
    main()
