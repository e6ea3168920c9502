"""The tolerance rule: what it lets pass, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from qd_core.testing.tolerance import assert_close, disagreements

F32 = np.float32


def test_four_units_are_granted_and_five_are_not() -> None:
    one = np.array([1.0], F32)
    ulp = np.spacing(one)
    assert not disagreements(one + 4 * ulp, one).any()
    assert disagreements(one + 5 * ulp, one).all()


def test_eight_times_the_reference_s_own_error_is_granted() -> None:
    exact, reference = np.array([1.0]), np.array([1.0 + 1e-5], F32)
    assert not disagreements(np.array([1.0 - 7.9e-5], F32), reference, exact).any()
    assert disagreements(np.array([1.0 - 8.9e-5], F32), reference, exact).all()


def test_the_worst_element_counts_for_all_of_a_kernel() -> None:
    exact = np.array([1.0, 2.0])
    reference, actual = np.array([1.0 + 1e-5, 2.0], F32), np.array([1.0, 2.0 + 5e-5], F32)
    assert disagreements(actual, reference, exact).tolist() == [False, True]
    assert not disagreements(actual, reference, exact, together=True).any()


def test_an_f64_result_is_judged_by_the_f32_error_scaled() -> None:
    exact, narrow = np.array([1.0]), np.array([1.0 + 1e-5], F32)
    scale = np.finfo(np.float64).eps / np.finfo(F32).eps
    assert not disagreements(exact + 7 * 1e-5 * scale, exact, exact, narrow).any()
    assert disagreements(exact + 1e-12, exact, exact, narrow).all()


def test_f32_precision_in_f64_is_noticed() -> None:
    exact = np.random.default_rng(1).random(100)
    with pytest.raises(AssertionError, match="100 elements differ"):
        assert_close(exact.astype(F32).astype(np.float64), exact)


def test_integers_and_truth_values_must_be_equal() -> None:
    assert disagreements(np.array([1, 2]), np.array([1, 3])).tolist() == [False, True]
    assert disagreements(np.array([True]), np.array([False])).all()


def test_nan_and_infinity() -> None:
    nan, inf, big = np.array([np.nan], F32), np.array([np.inf], F32), np.array([np.finfo(F32).max])
    assert not disagreements(nan, nan).any()
    assert disagreements(nan, np.zeros(1, F32)).all()
    assert disagreements(np.zeros(1, F32), nan).all()
    assert disagreements(inf, -inf).all()
    assert disagreements(inf, np.ones(1, F32)).all()
    assert not disagreements(inf, big).any()
    assert disagreements(-inf, big).all()


def test_shape_and_dtype_must_match() -> None:
    with pytest.raises(AssertionError, match="got float64"):
        disagreements(np.zeros(1), np.zeros(1, F32))
    with pytest.raises(AssertionError, match="wanted float32"):
        disagreements(np.zeros(2, F32), np.zeros(1, F32))


def test_the_message_names_the_place_and_what_was_permitted() -> None:
    with pytest.raises(AssertionError, match=r"x: 1 of 4 elements differ; first at \(1, 0\).*permitted error"):
        assert_close(np.array([[1, 2], [4, 3]], F32), np.array([[1, 2], [3, 3]], F32), what="x")
