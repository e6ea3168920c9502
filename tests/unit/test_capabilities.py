"""Claims: their names, what is refused, and what follows from them."""

from __future__ import annotations

import pytest

from qd_core import dtypes as dt
from qd_core.backend import capabilities
from qd_core.backend.capabilities import CapabilitySet, atomics, enabled_extensions, types
from qd_core.errors import UnsupportedError

SOME = CapabilitySet(
    types=types(dt.i32, dt.f32) | types(dt.f16, spaces=["shared"]),
    atomics=atomics(["add", "min"], [dt.i32]),
    features=frozenset({"log.records"}),
    limits={"workers": 4, "lanes": 8},
)


@pytest.mark.parametrize(
    "name", ["type.i32", "type.i32.global", "type.i32.private", "type.f16.shared", "atomic.add.i32", "log.records"]
)
def test_claimed(name):
    assert SOME.has(name)
    SOME.require(name, "toy")


@pytest.mark.parametrize(
    "name", ["type.f64", "type.f16", "type.i32.shared", "atomic.max.i32", "atomic.add.f32", "memory.shared"]
)
def test_not_claimed(name):
    assert not SOME.has(name)
    with pytest.raises(UnsupportedError, match=f"{name}.*'toy'"):
        SOME.require(name, "toy")


@pytest.mark.parametrize(
    "name", ["type.f65", "type.f32.glob", "atomic.foo.i32", "atomic.add", "memory.shard", "", "type"]
)
def test_a_claim_that_cannot_be_made_is_no_quiet_false(name):
    with pytest.raises(ValueError, match="unknown"):
        SOME.has(name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"features": frozenset({"memory.shard"})},
        {"limits": {"worker": 1}},
        {"types": types(dt.i32, spaces=["local"])},
        {"atomics": atomics(["nand"], [dt.i32])},
    ],
)
def test_unregistered_names_are_refused(arguments):
    with pytest.raises(ValueError, match="unknown"):
        CapabilitySet(**arguments)


def test_identity_is_stable_and_tells_sets_apart():
    again = CapabilitySet(SOME.types, SOME.atomics, SOME.features, {"lanes": 8, "workers": 4})
    assert again.identity() == SOME.identity()
    assert hash(again) == hash(SOME)
    assert again == SOME
    assert (
        CapabilitySet(SOME.types, SOME.atomics, SOME.features, {"lanes": 4, "workers": 4}).identity() != SOME.identity()
    )
    assert CapabilitySet().identity() == ""


def test_missing_keeps_the_order():
    assert SOME.missing(["type.f64", "type.i32", "memory.shared"]) == ("type.f64", "memory.shared")


def test_union_and_limits():
    both = SOME.union(CapabilitySet(types(dt.f64), limits={"lanes": 16}))
    assert both.has("type.f64")
    assert both.has("type.i32")
    assert both.limit("lanes") == 16
    assert both.limit("workers") == 4
    assert both.limit("shared.nbytes") is None
    with pytest.raises(ValueError, match="did you mean 'lanes'"):
        both.limit("lane")


def test_rows_show_every_claim():
    rows = dict(SOME.rows())
    assert rows["types, global"] == "i32 f32"
    assert rows["types, shared"] == "f16"
    assert rows["atomic add, global"] == "i32"
    assert rows["features"] == "log.records"
    assert rows["limit lanes"].startswith("8 (")


def test_extensions_follow_from_claims():
    assert enabled_extensions(CapabilitySet()) == {"adstack"}
    assert enabled_extensions(SOME) == {"adstack", "assertion"}
    wide = CapabilitySet(types(dt.i64, dt.u64, dt.f64), features=frozenset({"memory.shared", "block.barrier"}))
    assert enabled_extensions(wide) == {"adstack", "data64", "bls"}


def test_every_need_of_an_extension_can_be_claimed():
    for needs in capabilities.EXTENSIONS.values():
        CapabilitySet().missing(needs or ())  # raises for a name that is not registered


def test_an_extension_registers_under_its_own_prefix(monkeypatch):
    monkeypatch.setattr(capabilities, "_FEATURES", dict(capabilities.feature_names()))
    with pytest.raises(ValueError, match="prefix of its own"):
        capabilities.register_feature("memory.warm", "Memory is warm.")
    with pytest.raises(ValueError, match="prefix of its own"):
        capabilities.register_feature("warm", "Memory is warm.")
    capabilities.register_feature("toy.warm", "Memory is warm.")
    capabilities.register_feature("toy.warm", "Memory is warm.")
    with pytest.raises(ValueError, match="registered already"):
        capabilities.register_feature("toy.warm", "Memory is cold.")
    assert CapabilitySet(features=frozenset({"toy.warm"})).has("toy.warm")
    assert capabilities.describe("toy.warm") == "Memory is warm"
