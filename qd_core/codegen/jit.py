"""LLVM IR text to machine code in this process: optimise, emit an object, link it, look symbols up.

An object is a value of its own (`bytes`): it holds no address, so it may be kept on disk and loaded by another process
on the same host (`host_identity`). Addresses of the running process enter only in `Jit.load`.

Nothing here imports llvmlite before it is used.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from qd_core.codegen.workers import Workers

PIPELINE_VERSION = 1
"""Goes into `host_identity`; raise it whenever the same IR may give another object."""

MAX_OPT_LEVEL = 3


@functools.cache
def _llvm() -> Any:
    """Return llvmlite's binding with the host's target initialised (60 to 100 ms at the first call)."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def host_triple() -> str:
    """Return the target triple of code that runs in this process."""
    return str(_llvm().get_process_triple())


@functools.cache
def host_cpu() -> tuple[str, str]:
    """Return LLVM's name of the host CPU and its features as one `+a,-b` string."""
    llvm = _llvm()
    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on this operating system: the CPU's name implies a set
        features = ""
    return str(llvm.get_host_cpu_name()), str(features)


def host_features() -> frozenset[str]:
    """Return the names of the host CPU's features that are present, such as `avx2`."""
    flags = host_cpu()[1].split(",")
    return frozenset(flag[1:] for flag in flags if flag.startswith("+"))


@functools.cache
def host_identity() -> str:
    """Return everything besides the IR and the options that decides an object's bytes, for cache keys."""
    import llvmlite

    version = ".".join(map(str, _llvm().llvm_version_info))
    name, features = host_cpu()
    return (
        f"llvmlite {llvmlite.__version__} llvm {version} {host_triple()} {name} {features} pipeline {PIPELINE_VERSION}"
    )


class LoadedObject(dict[str, int]):
    """Symbol addresses of one loaded object. The code stays mapped until `Jit.unload` gets this object."""

    __slots__ = ("tracker",)

    def __init__(self, addresses: Mapping[str, int], tracker: object) -> None:
        super().__init__(addresses)
        self.tracker = tracker


class ObjectStore(Protocol):
    """Keeps objects between processes."""

    def get(self, key: str) -> bytes | None:
        """Return what was put under `key`, or None."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`."""
        ...


class Jit:
    """A just-in-time compiler and linker for the host.

    It is never torn down: unmapping code under a running thread cannot be made safe from here.

    Attributes
    ----------
    store
        Where `compile_kept` keeps objects; None compiles every time.
    workers
        Processes that compile in place of this one, while there are some.
    """

    store: ObjectStore | None = None
    workers: Workers | None = None

    def __init__(self) -> None:
        self._names = itertools.count()
        self._machines: dict[int, Any] = {}
        self._builders: dict[tuple[bool, int], Any] = {}
        self._keep: dict[int, LoadedObject] = {}
        self._lock = threading.Lock()
        self._linker: Any = None

    def compile(self, ir_text: str, *, vectorize: bool, opt_level: int, times: dict[str, float] | None = None) -> bytes:
        """Compile IR text to a relocatable object.

        Parameters
        ----------
        ir_text
            An LLVM module; its triple and data layout are replaced by the host's.
        vectorize
            Let the loop vectoriser and the unroller run; worth their time for loops that do real work.
        opt_level
            0 (no passes at all) to 3. Straight-line vectorisation is off at every level: on unrolled small-matrix code
            it takes ten times as long as all other passes and gains nothing.
        times
            Gets the seconds of the passes and of the emission.

        Raises
        ------
        RuntimeError
            The text is not valid IR (LLVM's message follows).
        """
        if not 0 <= opt_level <= MAX_OPT_LEVEL:
            raise ValueError(f"opt_level must be 0 to {MAX_OPT_LEVEL}, got {opt_level}")
        times = {} if times is None else times
        if self.workers is not None:
            code, seconds = self.workers.compile(ir_text, vectorize, opt_level)
            times.update(seconds)
            return code
        begin = time.perf_counter()
        module = self._optimized(ir_text, vectorize, opt_level)
        middle = time.perf_counter()
        code = bytes(self._machine(opt_level).emit_object(module))
        times.update({"LLVM passes_s": middle - begin, "LLVM emission_s": time.perf_counter() - middle})
        return code

    def compile_kept(self, ir_text: str, *, vectorize: bool, opt_level: int) -> bytes:
        """Compile like `compile`, or take the object from `store` if it has been compiled on this host before."""
        if self.store is None:
            return self.compile(ir_text, vectorize=vectorize, opt_level=opt_level)
        text = f"{host_identity()}\n{vectorize} {opt_level}\n{ir_text}"
        key = hashlib.sha256(text.encode()).hexdigest()
        code = self.store.get(key)
        if code is None:
            code = self.compile(ir_text, vectorize=vectorize, opt_level=opt_level)
            self.store.put(key, code)
        return code

    def optimized_ir(self, ir_text: str, *, vectorize: bool, opt_level: int) -> str:
        """Return the module's text after the passes that `compile` runs, for dumps."""
        return str(self._optimized(ir_text, vectorize, opt_level))

    def assembly(self, ir_text: str, *, vectorize: bool, opt_level: int) -> str:
        """Return the host assembly of the module, for dumps (compiles afresh: emission changes a module)."""
        module = self._optimized(ir_text, vectorize, opt_level)
        return str(self._machine(opt_level).emit_assembly(module))

    def load(
        self, object_bytes: bytes, symbols: Iterable[str], imports: Mapping[str, int] | None = None
    ) -> LoadedObject:
        """Link an object into this process.

        Parameters
        ----------
        object_bytes
            What `compile` returned, here or in another process with the same `host_identity`.
        symbols
            Names to look up.
        imports
            Addresses for undefined symbols; what is not named here is looked up in the process (libc, libm).

        Raises
        ------
        RuntimeError
            A symbol is missing or the object is damaged.
        """
        llvm, linker = _llvm(), self._lljit()
        builder = llvm.JITLibraryBuilder().add_object_img(object_bytes).add_current_process()
        for name, address in (imports or {}).items():
            builder.import_symbol(name, address)
        wanted = list(symbols)
        for name in wanted:
            builder.export_symbol(name)
        tracker = builder.link(linker, f"object{next(self._names)}")
        loaded = LoadedObject({name: int(tracker[name]) for name in wanted}, tracker)
        with self._lock:
            self._keep[id(loaded)] = loaded
        return loaded

    def unload(self, loaded: LoadedObject) -> None:
        """Unmap a loaded object; nothing may run or call it any more. A second call does nothing."""
        with self._lock:
            self._keep.pop(id(loaded), None)
        tracker, loaded.tracker = loaded.tracker, None
        loaded.clear()
        if tracker is not None:
            tracker.close()  # type: ignore[attr-defined]

    def _optimized(self, ir_text: str, vectorize: bool, opt_level: int) -> Any:
        llvm, machine = _llvm(), self._machine(opt_level)
        module = llvm.parse_assembly(ir_text)
        module.triple = host_triple()
        module.data_layout = str(machine.target_data)
        module.verify()
        if opt_level > 0:
            builder = self._pass_builder(vectorize, opt_level)
            passes = builder.getModulePassManager()
            passes.run(module, builder)
            _dispose(passes)
        return module

    def _pass_builder(self, vectorize: bool, opt_level: int) -> Any:
        """Return the builder of a pipeline, made once: each one that is made leaves memory behind."""
        key = vectorize, opt_level
        if key not in self._builders:
            tuning = _tuning(vectorize, opt_level)
            self._builders[key] = _llvm().create_pass_builder(self._machine(opt_level), tuning)
        return self._builders[key]

    def _machine(self, opt_level: int) -> Any:
        machine = self._machines.get(opt_level)
        if machine is None:
            machine = self._machines.setdefault(opt_level, _target_machine(opt_level))
        return machine

    def _lljit(self) -> Any:
        with self._lock:
            if self._linker is None:
                # JITLink puts all sections of one object next to each other, so that near relocations always reach.
                self._linker = _llvm().create_lljit_compiler(_target_machine(2), use_jit_link=True)
                _immortalize(self)
                _immortalize(self._linker)
            return self._linker


def _target_machine(opt_level: int) -> Any:
    name, features = host_cpu()
    target = _llvm().Target.from_triple(host_triple())
    return target.create_target_machine(name, features, opt=opt_level, reloc="pic", codemodel="small")


def _tuning(vectorize: bool, opt_level: int) -> Any:
    tuning = _llvm().create_pipeline_tuning_options(opt_level)
    tuning.slp_vectorization = False
    tuning.loop_vectorization = vectorize
    tuning.loop_interleaving = vectorize
    tuning.loop_unrolling = vectorize
    return tuning


def _dispose(passes: Any) -> None:
    """Free a pass manager: in llvmlite 0.50, its ``close`` frees nothing, because its first base class has an empty
    ``_dispose``.
    """
    from llvmlite.binding.ffi import ObjectRef
    from llvmlite.binding.newpassmanagers import NewPassManager

    if type(passes)._dispose is ObjectRef._dispose:
        NewPassManager._dispose(passes)
    passes.close()


def _immortalize(thing: object) -> None:
    """Add a reference that nobody drops: the interpreter's shutdown must not free code that threads may run."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def process_jit() -> Jit:
    """Return the one `Jit` of this process."""
    with _making:  # threads that ask first at the same time get the same one
        return _jit()


@functools.cache
def _jit() -> Jit:
    return Jit()


_making = threading.RLock()
