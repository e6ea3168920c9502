"""Runs IR on NumPy arrays in one call: no device, no packer of core, no artifact.

For tests of passes, of derivative rules and of the interpreter itself::

    run = interpret(function, {"n": 3, "x": x, "y": y})     # x and y are changed in place
    run.arrays["result"], run.records
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.ir.hostexpr import evaluate_host
from qd_core.ir.nodes import ArrayType, Function, Param, Role
from qd_core.ir.program import Extent, Fixed, HostExpr, Program
from qd_core.ir.verify import verify
from qd_core.reference.interpreter import Interpreter, Prepared
from qd_core.reference.log import HEADER
from qd_core.reference.memory import Memory

__all__ = ["Run", "interpret"]

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Run:
    """What came of a run.

    Attributes
    ----------
    arrays : dict
        Every array of the program by path, those made for the run (results, temporaries, log) included.
    records : list of (int, int, tuple)
        Messages: site, iteration, recorded values as Python numbers.
    dropped : int
        Messages that did not fit.
    first_error : int
        Site of the first failed check plus 1, or 0.
    """

    arrays: dict[str, Array] = field(default_factory=dict[str, Array])
    records: list[tuple[int, int, tuple[Any, ...]]] = field(default_factory=list[tuple[int, int, tuple[Any, ...]]])
    dropped: int = 0
    first_error: int = 0


def interpret(code: Function | Program, arguments: Mapping[str, Any], *, log_words: int = 4096) -> Run:
    """Run a kernel with the reference interpreter.

    Parameters
    ----------
    code : Function or Program
        A function is cut into tasks first (`passes.offload`, which removes its dead code in place).
    arguments : mapping of str to scalar or ndarray
        By path: Python numbers, and arrays of the parameter's dtype and rank with any non-negative strides, changed
        in place. Element axes must be contiguous. Arrays with a fixed shape and the log are made where they are not
        given (filled with the byte 0xFF).
    log_words : int
        Capacity of the log.

    Returns
    -------
    Run
        Arrays and messages.

    Raises
    ------
    InvalidIRError
        The code is invalid.
    InterpreterError
        An index is outside its array.
    """
    program = _program(code)
    verify(program)
    run = Run({p.path: _array_of(p, arguments, log_words) for p in program.params if isinstance(p.type, ArrayType)})
    memory = _ArgumentMemory(program, run.arrays, arguments)
    extents = [_extent(e, run.arrays, arguments) for t in program.tasks for e in t.extents]
    Interpreter(Prepared(program), memory).run(extents)
    _read_log(program, run)
    return run


def _program(code: Function | Program) -> Program:
    if isinstance(code, Program):
        return code
    from qd_core.passes.offload import offload

    verify(code)
    return offload(code)


def _array_of(param: Param, arguments: Mapping[str, Any], log_words: int) -> Array:
    kind: ArrayType = param.type
    given = arguments.get(param.path)
    if given is not None:
        if given.dtype != kind.dtype.numpy or given.shape[kind.ndim :] != kind.element_shape:
            raise TypeError(f"{param.path!r} is {given.dtype}{given.shape}, wanted {kind!r}")
        return given
    if param.role is Role.LOG:
        return np.array([0, log_words, 0, 0] + [-1] * log_words, np.int64)
    if kind.fixed_shape is None:
        raise TypeError(f"no array is given for {param.path!r}")
    shape = (*kind.fixed_shape, *kind.element_shape)
    fill = np.full(shape, True) if kind.dtype is dt.u1 else np.full((*shape, kind.dtype.nbytes), 0xFF, np.uint8)
    return fill if kind.dtype is dt.u1 else fill.view(kind.dtype.numpy)[..., 0]


class _ArgumentMemory(Memory):
    """Arrays by number; the words are packed here, independently of core's packers."""

    def __init__(self, program: Program, arrays: Mapping[str, Array], arguments: Mapping[str, Any]) -> None:
        self.arrays = list(arrays.values())
        number = {path: n for n, path in enumerate(arrays)}
        words: list[int] = []
        for param in program.params:
            if isinstance(param.type, ArrayType):
                array, ndim = arrays[param.path], param.type.ndim
                words += [number[param.path], *array.shape[:ndim], *(s // array.itemsize for s in array.strides[:ndim])]
            else:
                words.append(_scalar_word(param, arguments[param.path]))
        super().__init__(np.array(words, np.int64))

    def locate(self, param: Param, word: int) -> Array:
        """Return the bytes of array number ``word`` up to its last element."""
        array = self.arrays[word]
        nbytes = array.itemsize + sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(array.ctypes.data))


def _scalar_word(param: Param, value: Any) -> int:
    data = np.zeros(8, np.uint8)
    data[: param.type.nbytes] = np.asarray(value, param.type.numpy).reshape(1).view(np.uint8)
    return int(data.view(np.int64)[0])


def _extent(extent: Extent, arrays: Mapping[str, Array], arguments: Mapping[str, Any]) -> int:
    if isinstance(extent, Fixed):
        return extent.count
    if not isinstance(extent, HostExpr):
        return -1
    value = evaluate_host(extent.body, lambda p: arguments[p.path], lambda p, axis: arrays[p.path].shape[axis])
    return max(value, 0)


def _read_log(program: Program, run: Run) -> None:
    if program.log is None:
        return
    log = run.arrays[program.log.path]
    used, _, run.dropped, run.first_error = map(int, log[:HEADER])
    at = HEADER
    while at < HEADER + used:
        site, iteration = int(log[at]), int(log[at + 1])
        kinds = [dt.by_name(name) for name in program.sites[site].dtypes]
        words = log[at + 2 : at + 2 + len(kinds)]
        run.records.append((site, iteration, tuple(_decode(w, d) for w, d in zip(words, kinds, strict=True))))
        at += 2 + len(kinds)


def _decode(word: Any, kind: dt.DType) -> Any:
    if kind.is_real:
        return float(word.view(np.float64))
    return int(word.view(np.uint64)) if kind is dt.u64 else int(word)
