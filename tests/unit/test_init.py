"""`qd.init`: its options, the environment, archs, threads and processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import BackendUnavailableError, OptionError, QuadrantsRuntimeError, UnknownBackendError
from qd_core.runtime.cache import ArtifactCache
from qd_core.runtime.options import IGNORED, Options, option_rows


@pytest.fixture(autouse=True)
def closed():
    yield
    qd.reset()
    qd.set_logging_level("info")


def test_every_option_is_accepted_and_seen():
    rows = option_rows()
    assert len({r.name for r in rows}) == len(rows)
    assert all(r.meaning for r in rows)
    qd.init(arch=qd.cpu, **{r.name: r.default for r in rows if r.name != "debug"}, debug=True)
    assert qd.cfg.debug is True
    assert all(getattr(qd.cfg, r.name) == r.default for r in rows if r.name != "debug")
    assert qd.cfg.arch == qd.cpu
    with pytest.raises(AttributeError, match="no option"):
        _ = qd.cfg.debgu
    qd.reset()
    assert qd.cfg is None


def test_options_and_reasons_do_not_mix():
    assert not set(IGNORED) & set(Options.__dataclass_fields__)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"debgu": True}, "did you mean 'debug'"),
        ({"devise_memory_GB": 1}, "did you mean 'device_memory_GB'"),
        ({"debug": "yes"}, "debug must be True or False"),
        ({"opt_level": 9}, "at most 3"),
        ({"cpu_max_num_threads": -1}, "at least 0"),
        ({"cpu_max_num_threads": 1.5}, "an integer"),
        ({"random_seed": True}, "an integer"),
        ({"log_level": "loud"}, "one of trace, debug"),
        ({"offline_cache_cleaning_policy": "mru"}, "one of lru"),
        ({"default_fp": "f32"}, "a type such as"),
        ({"default_ip": qd.u32}, "one of i32, i64"),
        ({"default_up": qd.u32}, "default_up cannot be set"),
        ({"require_version": "9.0"}, "requires version 9.0"),
        ({"require_version": "new"}, "must be a version"),
        ({"arch": 3}, "arch must be"),
    ],
)
def test_refusals_name_the_option_and_leave_the_device_open(given, message):
    qd.init(arch=qd.cpu)
    x = qd.ndarray(qd.i32, 2)
    with pytest.raises(OptionError, match=message):
        qd.init(**given)
    assert isinstance(OptionError("x"), KeyError)
    assert x.to_numpy().tolist() == [0, 0]


def test_the_environment_sets_options(monkeypatch):
    for name, text in (("DEBUG", "on"), ("DEFAULT_FP", "64"), ("CPU_MAX_NUM_THREADS", "1"), ("RANDOM_SEED", "7")):
        monkeypatch.setenv(f"QD_{name}", text)
    with pytest.warns(RuntimeWarning, match="QD_RANDOM_SEED is ignored"):
        qd.init(arch=qd.cpu, random_seed=3)
    cfg = qd.cfg
    assert (cfg.debug, cfg.default_fp, cfg.cpu_max_num_threads, cfg.random_seed) == (True, qd.f64, 1, 3)
    monkeypatch.setenv("QD_DEBUG", "perhaps")
    with pytest.raises(OptionError, match="QD_DEBUG='perhaps'"):
        qd.init(arch=qd.cpu)


def test_archs(monkeypatch, capsys):
    qd.init(arch=["reference", qd.cpu])
    assert qd.cfg.arch.name == "reference"
    assert "[Quadrants] Starting on arch=reference" in capsys.readouterr().out
    monkeypatch.setenv("QD_ENABLE_REFERENCE", "0")
    qd.init(arch=[qd.reference, qd.cpu])
    assert qd.cfg.arch == qd.cpu
    with pytest.warns(RuntimeWarning, match=r"running on the CPU(.|\n)*QD_ENABLE_REFERENCE"):
        qd.init(arch="reference")
    with pytest.raises(QuadrantsRuntimeError, match=r"Arch=\['reference'\] is not supported") as caught:
        qd.init(arch="reference", enable_fallback=False)
    assert isinstance(caught.value.__cause__, BackendUnavailableError)
    with pytest.raises(QuadrantsRuntimeError, match=r"Arch=\[\] is not supported"):
        qd.init(arch=[], enable_fallback=False)
    with pytest.raises(UnknownBackendError, match="did you mean"):
        qd.init(arch="referense")
    monkeypatch.setenv("QD_ENABLE_REFERENCE", "1")
    monkeypatch.setenv("QD_ARCH", "reference,cpu")
    qd.init(arch=qd.cpu)
    assert qd.cfg.arch == qd.reference


def test_extensions():
    assert qd.is_extension_supported(qd.cpu, qd.extension.data64)
    assert not qd.is_extension_supported([qd.cpu], "bls")
    with pytest.raises(OptionError, match="unknown extension"):
        qd.is_extension_supported(qd.cpu, "data46")
    qd.init(arch=qd.cpu)
    assert qd.is_extension_enabled(qd.extension.adstack)


def test_logging_goes_through_functions_that_programs_replace(monkeypatch, capsys):
    said = []
    monkeypatch.setattr(qd._logging, "info", said.append)
    qd.init(arch=qd.cpu)
    assert said
    assert capsys.readouterr().out == ""
    qd.set_logging_level(qd.ERROR)
    qd._logging.warn("no")
    qd._logging.error("yes")
    assert capsys.readouterr().out == "[Quadrants] [error] yes\n"
    with pytest.raises(ValueError, match="a logging level is one of"):
        qd.set_logging_level("loud")


def test_floats_in_templates_can_be_refused():
    @qd.kernel
    def k(a: qd.template()) -> float:
        return a

    qd.init(arch=qd.cpu)
    assert k(0.5) == 0.5
    qd.init(arch=qd.cpu, raise_on_templated_floats=True)
    assert k(2) == 2
    with pytest.raises(qd.QuadrantsRuntimeTypeError, match=r"'a' = 0\.5 is a float in a template"):
        k(0.5)


def test_cleaning_policies(tmp_path):
    import os

    def survivors(policy, factor=0.0):
        folder = tmp_path / f"{policy}{factor}"
        cache = ArtifactCache(folder, 350, policy, factor)
        cache._stored = 1  # pruned below, not while writing
        for k in range(4):
            cache.write(f"k{k}", b"x" * 20)
            os.utime(folder / f"k{k}.qdc", (k, k))
        size = (folder / "k0.qdc").stat().st_size
        cache.max_nbytes = 3 * size
        assert cache.read("k0") == b"x" * 20
        cache.prune()
        return sorted(p.stem for p in folder.glob("*.qdc"))

    assert survivors("lru") == ["k0", "k2", "k3"]
    assert survivors("fifo") == ["k1", "k2", "k3"]
    assert survivors("lru", 0.5) == ["k0"]
    assert survivors("never") == ["k0", "k1", "k2", "k3"]


def test_print_ir(capsys):
    @qd.kernel
    def k(x: qd.types.ndarray(qd.i32, 1)):
        for i in x:
            x[i] = i

    qd.init(arch=qd.cpu, print_ir=True)
    k(np.zeros(3, np.int32))
    out = capsys.readouterr().out
    assert "[lowered]" in out
    assert "[offloaded]" in out


def test_threads_launch_together():
    @qd.kernel
    def add(x: qd.types.ndarray(qd.f32, 1), n: qd.i32):
        for i in x:
            x[i] += n

    qd.init(arch=qd.cpu)
    arrays = [np.zeros(5000, np.float32) for _ in range(4)]
    failures = []

    def work(x):
        try:
            for _ in range(50):
                add(x, 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert all((x == 100).all() for x in arrays)


PROCESSES = """
import multiprocessing, sys
import numpy as np
import qd_core as qd

@qd.kernel
def square(x: qd.types.ndarray(qd.f64, 1)) -> qd.f64:
    s = 0.0
    for i in x:
        s += qd.cast(x[i] * x[i], qd.f64)
    return s

def work(n):
    if qd.cfg is None:
        qd.init(arch=qd.cpu, log_level="error")
    x = np.full(100000, n, np.float64)
    return square(x)

if __name__ == "__main__":
    if sys.argv[1] == "fork":
        qd.init(arch=qd.cpu, default_fp=qd.f64)
        work(1)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(work, [1, 2, 3]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(method, tmp_path):
    if not hasattr(__import__("os"), method) and method == "fork":
        pytest.skip("this system does not fork")
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(qd.__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[100000.0, 400000.0, 900000.0]"
