"""LLVM IR that evaluates the extents of a launch's tasks; see `native_pack_ir` for the notation."""

from __future__ import annotations

EXTENTS_IR = """
; run a formula: count, then (operation, number) pairs; `native_spec.Formula` has checked it
define internal i64 @qd_formula(ptr %steps, ptr %words) {
entry:
  %stack = alloca [${FORMULA_DEPTH} x i64]
  %count = load i64, ptr %steps
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %n1, %push ]
  %depth = phi i64 [ 0, %entry ], [ %depth1, %push ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %step, label %done
step:
  %pair = mul i64 %n, 2
  %name_index = add i64 %pair, 1
  %number_index = add i64 %pair, 2
  %name_at = getelementptr i64, ptr %steps, i64 %name_index
  %name = load i64, ptr %name_at
  %number_at = getelementptr i64, ptr %steps, i64 %number_index
  %number = load i64, ptr %number_at
  switch i64 %name, label %binary [ i64 0, label %word
                                    i64 1, label %constant
                                    i64 2, label %extend
                                    i64 3, label %extend ]
word:
  %word_at = getelementptr i64, ptr %words, i64 %number
  %word_value = load i64, ptr %word_at
  br label %push
constant:
  br label %push
extend:
  %last = sub i64 %depth, 1
  %last_at = getelementptr i64, ptr %stack, i64 %last
  %wide = load i64, ptr %last_at
  %by = sub i64 64, %number
  %up = shl i64 %wide, %by
  %signed = ashr i64 %up, %by
  %unsigned = lshr i64 %up, %by
  %is_signed = icmp eq i64 %name, 2
  %extended = select i1 %is_signed, i64 %signed, i64 %unsigned
  br label %push
binary:
  %right = sub i64 %depth, 1
  %right_at = getelementptr i64, ptr %stack, i64 %right
  %b = load i64, ptr %right_at
  %left = sub i64 %depth, 2
  %left_at = getelementptr i64, ptr %stack, i64 %left
  %a = load i64, ptr %left_at
  switch i64 %name, label %floordiv [ i64 4, label %add
                                      i64 5, label %sub
                                      i64 6, label %mul
                                      i64 7, label %min
                                      i64 8, label %max ]
add:
  %sum = add i64 %a, %b
  br label %push
sub:
  %difference = sub i64 %a, %b
  br label %push
mul:
  %product = mul i64 %a, %b
  br label %push
min:
  %less = icmp slt i64 %a, %b
  %smaller = select i1 %less, i64 %a, i64 %b
  br label %push
max:
  %greater = icmp sgt i64 %a, %b
  %larger = select i1 %greater, i64 %a, i64 %b
  br label %push
floordiv:
  %by_zero = icmp eq i64 %b, 0
  br i1 %by_zero, label %push, label %nonzero
nonzero:
  ; the smallest number by -1 overflows the division, but not the negation
  %by_minus = icmp eq i64 %b, -1
  br i1 %by_minus, label %negate, label %divide
negate:
  %negated = sub i64 0, %a
  br label %push
divide:
  %quotient = sdiv i64 %a, %b
  %back = mul i64 %quotient, %b
  %inexact = icmp ne i64 %back, %a
  %signs = xor i64 %a, %b
  %opposite = icmp slt i64 %signs, 0
  %down = and i1 %inexact, %opposite
  %borrow = sext i1 %down to i64
  %floor = add i64 %quotient, %borrow
  br label %push
push:
  %value = phi i64 [ %word_value, %word ], [ %number, %constant ], [ %extended, %extend ], [ %sum, %add ],
                   [ %difference, %sub ], [ %product, %mul ], [ %smaller, %min ], [ %larger, %max ], [ 0, %floordiv ],
                   [ %negated, %negate ], [ %floor, %divide ]
  %base = phi i64 [ %depth, %word ], [ %depth, %constant ], [ %last, %extend ], [ %left, %add ], [ %left, %sub ],
                  [ %left, %mul ], [ %left, %min ], [ %left, %max ], [ %left, %floordiv ], [ %left, %negate ],
                  [ %left, %divide ]
  %to = getelementptr i64, ptr %stack, i64 %base
  store i64 %value, ptr %to
  %depth1 = add i64 %base, 1
  %n1 = add i64 %n, 1
  br label %loop
done:
  %result = load i64, ptr %stack
  ret i64 %result
}

; fill the extents, return the work
define internal double @qd_extents(ptr %plan, ptr %words, ptr %extents) {
entry:
  %function = load ptr, ptr ${plan.extents_function}
  %simple = icmp eq ptr %function, null
  br i1 %simple, label %axes, label %call
call:
  %returned = call i64 %function(ptr %words, ptr %extents)
  %work_called = sitofp i64 %returned to double
  ret double %work_called
axes:
  %count = load i64, ptr ${plan.axis_count}
  %table = load ptr, ptr ${plan.axes}
  br label %loop
loop:
  %n = phi i64 [ 0, %axes ], [ %n1, %next ]
  %sum = phi double [ 0.0, %axes ], [ %sum1, %next ]
  %product = phi double [ 0.0, %axes ], [ %product1, %next ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %body, label %done
body:
  %offset = mul i64 %n, ${axis_nbytes}
  %axis = getelementptr i8, ptr %table, i64 %offset
  %kind = load i64, ptr ${axis.kind}
  %value = load i64, ptr ${axis.value}
  %is_fixed = icmp eq i64 %kind, ${AXIS_FIXED}
  br i1 %is_fixed, label %next, label %given
given:
  %is_formula = icmp eq i64 %kind, ${AXIS_FORMULA}
  br i1 %is_formula, label %formula, label %word
formula:
  %steps = inttoptr i64 %value to ptr
  %computed = call i64 @qd_formula(ptr %steps, ptr %words)
  br label %clamp
word:
  %word_at = getelementptr i64, ptr %words, i64 %value
  %raw = load i64, ptr %word_at
  %is_i32 = icmp eq i64 %kind, ${AXIS_WORD_I32}
  %low = trunc i64 %raw to i32
  %signed = sext i32 %low to i64
  %chosen = select i1 %is_i32, i64 %signed, i64 %raw
  %offset_by = load i64, ptr ${axis.offset}
  %moved = add i64 %chosen, %offset_by
  br label %clamp
clamp:
  %unclamped = phi i64 [ %computed, %formula ], [ %moved, %word ]
  %clamped = call i64 @llvm.smax.i64(i64 %unclamped, i64 0)
  br label %next
next:
  %extent = phi i64 [ %value, %body ], [ %clamped, %clamp ]
  %to = getelementptr i64, ptr %extents, i64 %n
  store i64 %extent, ptr %to
  %first = load i64, ptr ${axis.first}
  %starts = icmp ne i64 %first, 0
  %finished = fadd double %sum, %product
  %sum1 = select i1 %starts, double %finished, double %sum
  %so_far = select i1 %starts, double 1.0, double %product
  %factor = sitofp i64 %extent to double
  %product1 = fmul double %so_far, %factor
  %n1 = add i64 %n, 1
  br label %loop
done:
  %work = fadd double %sum, %product
  ret double %work
}
"""
