"""Tables of the native launch entry: flat arrays of 64-bit words that `native` writes and the machine code reads.

Each tuple below names the words of one table.
"""

from __future__ import annotations

HEAD = ("plan", "slow", "call_name")
"""What `self` points to: first plan, Python callable of the slow path, the interned string `__call__`."""

PLAN = (
    "arguments",  # number of positional arguments
    "leaf_count",
    "leaves",
    "word_count",
    "words",  # template: what no argument fills stays as it is here
    "axis_count",
    "axes",
    "extents_function",  # 0, or i64 f(i64 *words, i64 *extents), which fills all extents and returns the work
    "release",  # f64: the GIL is released for at least this much work (product of a task's extents, summed over tasks)
    "written_count",
    "written",  # positions of the written array leaves, for the no-overlap guard
    "variant_count",
    "variants",
    "stream",
    "log_count",
    "log",  # addresses of i64 words; any that is not 0 after a launch calls `after`
    "after",
    "result_kind",
    "result",  # address of the result
    "finish",
    "next",  # the plan to try when this one does not fit
    "busy",  # the plan's fixed buffers are in use by a launch in progress
    "status",  # of the last kernel call
    "launches",
    "counter",  # 0, or the address of a word that numbers launches
    "counted",  # the word that gets its value; for a step of 0 the one before
    "counter_step",  # what a launch adds to it: 0 or 1
)

LEAF = (
    "kind",
    "argument",  # position
    "word",  # first word that this leaf fills
    "type",  # exact Python type of an array; what a scalar accepts (ACCEPT_*)
    "key",  # class key, or address of the NumPy dtype
    "ndim",  # run-time axes
    "hop",  # 0, or the header word that leads to the gradient's or the dual's header
    "slot",  # offset of the header holder in the object
    "flags",  # NumPy flags that must be set
    "element_axes",
    "element_shape",  # address
    "element_size",  # scalars in one element
    "itemsize",
    "low",  # smallest and largest integer accepted
    "high",
    "mask",  # bits kept of an integer; of a real 32 or 64
)

AXIS = ("kind", "value", "first", "offset")
VARIANT = ("guards", "function", "context")

HEADER_KEY, HEADER_ADDRESS, HEADER_NBYTES, HEADER_GRAD, HEADER_DUAL, HEADER_SHAPE = range(6)
"""Words of an array's header; extents, then strides, follow from `HEADER_SHAPE` on."""

INTEGER, REAL, HEADER_ARRAY, NUMPY_ARRAY, FIXED_ARRAY = range(5)
ACCEPT_INT, ACCEPT_FLOAT, ACCEPT_BOOL = 1, 2, 4
AXIS_FIXED, AXIS_WORD, AXIS_WORD_I32, AXIS_FORMULA = range(4)
FORMULA_STEPS = ("word", "constant", "signed", "unsigned", "add", "sub", "mul", "min", "max", "floordiv")
"""Operations of an extent's formula; its table is a count, then (operation, number) pairs."""
FORMULA_DEPTH = 16
RESULT_NONE, RESULT_I64, RESULT_U64, RESULT_I32, RESULT_U32, RESULT_F64, RESULT_F32, RESULT_BOOL, RESULT_CALL = range(9)
GUARD_NO_OVERLAP = 1
MAX_WORDS = 4096


def field(table: tuple[str, ...], name: str) -> int:
    """Return the word at which a table keeps `name`."""
    return table.index(name)
