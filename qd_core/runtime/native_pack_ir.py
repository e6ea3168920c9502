"""LLVM IR that turns Python arguments into packed words: scalars, arrays of ours, NumPy arrays, guards.

`${table.field}` stands for the address of a table's word or of a field of a Python object; `native_ir` puts it in.
"""

from __future__ import annotations

SCALARS_IR = """
; an int or a bool as a 64-bit integer; false when the object is neither, is not accepted, or does not fit
define internal i1 @qd_integer(ptr %leaf, ptr %object, ptr %out) {
entry:
  %overflow = alloca i32
  %accept = load i64, ptr ${leaf.type}
  %type = load ptr, ptr ${object.type}
  %is_int = icmp eq ptr %type, @PyLong_Type
  br i1 %is_int, label %int, label %not_int
int:
  %int_bit = and i64 %accept, ${ACCEPT_INT}
  %int_ok = icmp ne i64 %int_bit, 0
  br i1 %int_ok, label %read, label %bad
read:
  %value = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  store i64 %value, ptr %out
  %over = load i32, ptr %overflow
  %fits = icmp eq i32 %over, 0
  ret i1 %fits
not_int:
  %is_bool = icmp eq ptr %type, @PyBool_Type
  %bool_bit = and i64 %accept, ${ACCEPT_BOOL}
  %bool_accepted = icmp ne i64 %bool_bit, 0
  %bool_ok = and i1 %is_bool, %bool_accepted
  br i1 %bool_ok, label %bool, label %bad
bool:
  %true = icmp eq ptr %object, @_Py_TrueStruct
  %bit = zext i1 %true to i64
  store i64 %bit, ptr %out
  ret i1 true
bad:
  ret i1 false
}

define internal i1 @qd_pack_integer(ptr %leaf, ptr %object, ptr %words) {
entry:
  %out = alloca i64
  %read = call i1 @qd_integer(ptr %leaf, ptr %object, ptr %out)
  br i1 %read, label %check, label %bad
check:
  %value = load i64, ptr %out
  %low = load i64, ptr ${leaf.low}
  %high = load i64, ptr ${leaf.high}
  %above = icmp sge i64 %value, %low
  %below = icmp sle i64 %value, %high
  %fits = and i1 %above, %below
  br i1 %fits, label %write, label %bad
write:
  %mask = load i64, ptr ${leaf.mask}
  %bits = and i64 %value, %mask
  %word = load i64, ptr ${leaf.word}
  %at = getelementptr i64, ptr %words, i64 %word
  store i64 %bits, ptr %at
  ret i1 true
bad:
  ret i1 false
}

define internal i1 @qd_pack_real(ptr %leaf, ptr %object, ptr %words) {
entry:
  %out = alloca i64
  %accept = load i64, ptr ${leaf.type}
  %type = load ptr, ptr ${object.type}
  %is_float = icmp eq ptr %type, @PyFloat_Type
  %float_bit = and i64 %accept, ${ACCEPT_FLOAT}
  %float_accepted = icmp ne i64 %float_bit, 0
  %float_ok = and i1 %is_float, %float_accepted
  br i1 %float_ok, label %float, label %other
float:
  %given = call double @PyFloat_AsDouble(ptr %object)
  br label %convert
other:
  %read = call i1 @qd_integer(ptr %leaf, ptr %object, ptr %out)
  br i1 %read, label %check, label %bad
check:
  %integer = load i64, ptr %out
  ; beyond 2**53 a conversion through f64 would round twice
  %above = icmp sge i64 %integer, -9007199254740992
  %below = icmp sle i64 %integer, 9007199254740992
  %exact = and i1 %above, %below
  br i1 %exact, label %whole, label %bad
whole:
  %converted = sitofp i64 %integer to double
  br label %convert
convert:
  %value = phi double [ %given, %float ], [ %converted, %whole ]
  %word = load i64, ptr ${leaf.word}
  %at = getelementptr i64, ptr %words, i64 %word
  %width = load i64, ptr ${leaf.mask}
  %double = icmp eq i64 %width, 64
  br i1 %double, label %wide, label %narrow
wide:
  store double %value, ptr %at
  ret i1 true
narrow:
  %single = fptrunc double %value to float
  ; struct.pack refuses a finite f64 that overflows f32: leave that to the slow path
  %wide_size = call double @llvm.fabs.f64(double %value)
  %finite = fcmp olt double %wide_size, 0x7FF0000000000000
  %narrow_again = fpext float %single to double
  %narrow_size = call double @llvm.fabs.f64(double %narrow_again)
  %infinite = fcmp oeq double %narrow_size, 0x7FF0000000000000
  %overflowed = and i1 %finite, %infinite
  br i1 %overflowed, label %bad, label %store
store:
  %bits = bitcast float %single to i32
  %extended = zext i32 %bits to i64
  store i64 %extended, ptr %at
  ret i1 true
bad:
  ret i1 false
}
"""

ARRAYS_IR = """
define internal i1 @qd_pack_header(ptr %leaf, ptr %object, ptr %words, ptr %span, ptr %span_end) {
entry:
  %type = load ptr, ptr ${object.type}
  %wanted_type = load ptr, ptr ${leaf.type}
  %same_type = icmp eq ptr %type, %wanted_type
  br i1 %same_type, label %own, label %bad
own:
  %slot = load i64, ptr ${leaf.slot}
  %holder_at = getelementptr i8, ptr %object, i64 %slot
  %holder = load ptr, ptr %holder_at
  %unset = icmp eq ptr %holder, null
  br i1 %unset, label %bad, label %held
held:
  %own_header = load ptr, ptr ${holder.data}
  %hop = load i64, ptr ${leaf.hop}
  %direct = icmp eq i64 %hop, 0
  br i1 %direct, label %check, label %follow
follow:
  %link_at = getelementptr i64, ptr %own_header, i64 %hop
  %link = load ptr, ptr %link_at
  %missing = icmp eq ptr %link, null
  br i1 %missing, label %bad, label %check
check:
  %header = phi ptr [ %own_header, %held ], [ %link, %follow ]
  %key = load i64, ptr %header
  %wanted_key = load i64, ptr ${leaf.key}
  %same_key = icmp eq i64 %key, %wanted_key
  br i1 %same_key, label %copy, label %bad
copy:
  %word = load i64, ptr ${leaf.word}
  %to = getelementptr i64, ptr %words, i64 %word
  %address_at = getelementptr i64, ptr %header, i64 ${HEADER_ADDRESS}
  %address = load i64, ptr %address_at
  store i64 %address, ptr %to
  %nbytes_at = getelementptr i64, ptr %header, i64 ${HEADER_NBYTES}
  %nbytes = load i64, ptr %nbytes_at
  %end = add i64 %address, %nbytes
  store i64 %address, ptr %span
  store i64 %end, ptr %span_end
  %ndim = load i64, ptr ${leaf.ndim}
  %from = getelementptr i64, ptr %header, i64 ${HEADER_SHAPE}
  br label %loop
loop:
  %k = phi i64 [ 0, %copy ], [ %k1, %axis ]
  %all = phi i64 [ 0, %copy ], [ %all1, %axis ]
  %more = icmp slt i64 %k, %ndim
  br i1 %more, label %axis, label %done
axis:
  %extent_at = getelementptr i64, ptr %from, i64 %k
  %extent = load i64, ptr %extent_at
  %k1 = add i64 %k, 1
  %extent_to = getelementptr i64, ptr %to, i64 %k1
  store i64 %extent, ptr %extent_to
  %all1 = or i64 %all, %extent
  %s = add i64 %k, %ndim
  %stride_at = getelementptr i64, ptr %from, i64 %s
  %stride = load i64, ptr %stride_at
  %s1 = add i64 %s, 1
  %stride_to = getelementptr i64, ptr %to, i64 %s1
  store i64 %stride, ptr %stride_to
  br label %loop
done:
  %small = icmp ult i64 %all, 2147483648
  ret i1 %small
bad:
  ret i1 false
}

define internal i1 @qd_pack_numpy(ptr %leaf, ptr %object, ptr %words, ptr %span, ptr %span_end) {
entry:
  %type = load ptr, ptr ${object.type}
  %wanted_type = load ptr, ptr ${leaf.type}
  %same_type = icmp eq ptr %type, %wanted_type
  br i1 %same_type, label %array, label %bad
array:
  %dtype = load ptr, ptr ${object.dtype}
  %wanted_dtype = load ptr, ptr ${leaf.key}
  %same_dtype = icmp eq ptr %dtype, %wanted_dtype
  %flags32 = load i32, ptr ${object.flags}
  %flags = zext i32 %flags32 to i64
  %needed = load i64, ptr ${leaf.flags}
  %set = and i64 %flags, %needed
  %all_set = icmp eq i64 %set, %needed
  %nd32 = load i32, ptr ${object.nd}
  %nd = sext i32 %nd32 to i64
  %ndim = load i64, ptr ${leaf.ndim}
  %element_axes = load i64, ptr ${leaf.element_axes}
  %rank = add i64 %ndim, %element_axes
  %same_rank = icmp eq i64 %nd, %rank
  %ok1 = and i1 %same_dtype, %all_set
  %ok2 = and i1 %ok1, %same_rank
  br i1 %ok2, label %elements, label %bad
elements:
  %dims = load ptr, ptr ${object.dims}
  %element_shape = load ptr, ptr ${leaf.element_shape}
  br label %element_loop
element_loop:
  %e = phi i64 [ 0, %elements ], [ %e1, %element_ok ]
  %e_more = icmp slt i64 %e, %element_axes
  br i1 %e_more, label %element, label %fill
element:
  %e_axis = add i64 %e, %ndim
  %dim_at = getelementptr i64, ptr %dims, i64 %e_axis
  %dim = load i64, ptr %dim_at
  %wanted_at = getelementptr i64, ptr %element_shape, i64 %e
  %wanted = load i64, ptr %wanted_at
  %e1 = add i64 %e, 1
  %same = icmp eq i64 %dim, %wanted
  br i1 %same, label %element_ok, label %bad
element_ok:
  br label %element_loop
fill:
  %word = load i64, ptr ${leaf.word}
  %to = getelementptr i64, ptr %words, i64 %word
  %address = load i64, ptr ${object.data}
  store i64 %address, ptr %to
  %element_size = load i64, ptr ${leaf.element_size}
  br label %loop
loop:
  %k = phi i64 [ %ndim, %fill ], [ %axis, %step ]
  %stride = phi i64 [ %element_size, %fill ], [ %next_stride, %step ]
  %all = phi i64 [ 0, %fill ], [ %all1, %step ]
  %more = icmp sgt i64 %k, 0
  br i1 %more, label %step, label %done
step:
  %axis = sub i64 %k, 1
  %extent_at = getelementptr i64, ptr %dims, i64 %axis
  %extent = load i64, ptr %extent_at
  %extent_to = getelementptr i64, ptr %to, i64 %k
  store i64 %extent, ptr %extent_to
  %s = add i64 %k, %ndim
  %stride_to = getelementptr i64, ptr %to, i64 %s
  store i64 %stride, ptr %stride_to
  %next_stride = mul i64 %stride, %extent
  %all1 = or i64 %all, %extent
  br label %loop
done:
  %itemsize = load i64, ptr ${leaf.itemsize}
  %nbytes = mul i64 %stride, %itemsize
  %end = add i64 %address, %nbytes
  store i64 %address, ptr %span
  store i64 %end, ptr %span_end
  %small = icmp ult i64 %all, 2147483648
  ; memory of no bytes may be anywhere: the slow path decides where
  %some = icmp ne i64 %nbytes, 0
  %good = and i1 %small, %some
  ret i1 %good
bad:
  ret i1 false
}
"""

PACK_IR = """
define internal i1 @qd_pack(ptr %plan, ptr %args, ptr %words, ptr %spans, ptr %ends) {
entry:
  %count = load i64, ptr ${plan.leaf_count}
  %leaves = load ptr, ptr ${plan.leaves}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %n1, %next ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %body, label %good
body:
  %offset = mul i64 %n, ${leaf_nbytes}
  %leaf = getelementptr i8, ptr %leaves, i64 %offset
  %span = getelementptr i64, ptr %spans, i64 %n
  %span_end = getelementptr i64, ptr %ends, i64 %n
  %position = load i64, ptr ${leaf.argument}
  %object_at = getelementptr ptr, ptr %args, i64 %position
  %object = load ptr, ptr %object_at
  %kind = load i64, ptr ${leaf.kind}
  switch i64 %kind, label %bad [ i64 ${INTEGER}, label %integer
                                 i64 ${REAL}, label %real
                                 i64 ${HEADER_ARRAY}, label %header
                                 i64 ${NUMPY_ARRAY}, label %numpy
                                 i64 ${FIXED_ARRAY}, label %fixed ]
integer:
  %ok_integer = call i1 @qd_pack_integer(ptr %leaf, ptr %object, ptr %words)
  br label %next
real:
  %ok_real = call i1 @qd_pack_real(ptr %leaf, ptr %object, ptr %words)
  br label %next
header:
  %ok_header = call i1 @qd_pack_header(ptr %leaf, ptr %object, ptr %words, ptr %span, ptr %span_end)
  br label %next
numpy:
  %ok_numpy = call i1 @qd_pack_numpy(ptr %leaf, ptr %object, ptr %words, ptr %span, ptr %span_end)
  br label %next
fixed:
  %fixed_start = load i64, ptr ${leaf.key}
  %fixed_end = load i64, ptr ${leaf.high}
  store i64 %fixed_start, ptr %span
  store i64 %fixed_end, ptr %span_end
  br label %next
next:
  %ok = phi i1 [ %ok_integer, %integer ], [ %ok_real, %real ], [ %ok_header, %header ],
    [ %ok_numpy, %numpy ], [ true, %fixed ]
  %n1 = add i64 %n, 1
  br i1 %ok, label %loop, label %bad
good:
  ret i1 true
bad:
  ret i1 false
}

; true when no written array shares memory with any other one. Four at a time, up to `padded`, a multiple of four;
; scalars and what lies behind the last leaf have the span (0, 0), which meets nothing
define internal i1 @qd_disjoint(ptr %plan, ptr %spans, ptr %ends, i64 %padded) {
entry:
  %written_count = load i64, ptr ${plan.written_count}
  %written = load ptr, ptr ${plan.written}
  br label %outer
outer:
  %w = phi i64 [ 0, %entry ], [ %w1, %outer_next ]
  %w_more = icmp slt i64 %w, %written_count
  br i1 %w_more, label %one, label %yes
one:
  %own_at = getelementptr i64, ptr %written, i64 %w
  %own = load i64, ptr %own_at
  %a_at = getelementptr i64, ptr %spans, i64 %own
  %a = load i64, ptr %a_at
  %a_end_at = getelementptr i64, ptr %ends, i64 %own
  %a_end = load i64, ptr %a_end_at
  %own1 = insertelement <4 x i64> poison, i64 %own, i64 0
  %own4 = shufflevector <4 x i64> %own1, <4 x i64> poison, <4 x i32> zeroinitializer
  %a1 = insertelement <4 x i64> poison, i64 %a, i64 0
  %a4 = shufflevector <4 x i64> %a1, <4 x i64> poison, <4 x i32> zeroinitializer
  %a_end1 = insertelement <4 x i64> poison, i64 %a_end, i64 0
  %a_end4 = shufflevector <4 x i64> %a_end1, <4 x i64> poison, <4 x i32> zeroinitializer
  br label %inner
inner:
  %n = phi i64 [ 0, %one ], [ %n1, %compare ]
  %number = phi <4 x i64> [ <i64 0, i64 1, i64 2, i64 3>, %one ], [ %number1, %compare ]
  %any = phi <4 x i1> [ zeroinitializer, %one ], [ %any1, %compare ]
  %n_more = icmp slt i64 %n, %padded
  br i1 %n_more, label %compare, label %checked
compare:
  %b_at = getelementptr i64, ptr %spans, i64 %n
  %b = load <4 x i64>, ptr %b_at, align 8
  %b_end_at = getelementptr i64, ptr %ends, i64 %n
  %b_end = load <4 x i64>, ptr %b_end_at, align 8
  %reaches = icmp ult <4 x i64> %a4, %b_end
  %reached = icmp ult <4 x i64> %b, %a_end4
  %both = and <4 x i1> %reaches, %reached
  %other = icmp ne <4 x i64> %number, %own4
  %overlap = and <4 x i1> %both, %other
  %any1 = or <4 x i1> %any, %overlap
  %number1 = add <4 x i64> %number, <i64 4, i64 4, i64 4, i64 4>
  %n1 = add i64 %n, 4
  br label %inner
checked:
  %bits = bitcast <4 x i1> %any to i4
  %met = icmp ne i4 %bits, 0
  br i1 %met, label %no, label %outer_next
outer_next:
  %w1 = add i64 %w, 1
  br label %outer
yes:
  ret i1 true
no:
  ret i1 false
}

define internal ptr @qd_variant(ptr %plan, i64 %facts) {
entry:
  %count = load i64, ptr ${plan.variant_count}
  %variants = load ptr, ptr ${plan.variants}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %n1, %next ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %body, label %none
body:
  %offset = mul i64 %n, ${variant_nbytes}
  %variant = getelementptr i8, ptr %variants, i64 %offset
  %needed = load i64, ptr ${variant.guards}
  %held = and i64 %needed, %facts
  %fits = icmp eq i64 %held, %needed
  br i1 %fits, label %found, label %next
next:
  %n1 = add i64 %n, 1
  br label %loop
found:
  ret ptr %variant
none:
  ret ptr null
}
"""
