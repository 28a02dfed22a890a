"""The names that ops may have: those of StableHLO, CHLO and Shardy, and those that the passes make.

An op of any other dialect is written in quotes in the text form, so that a misspelt name is an error there.
"""

from __future__ import annotations

import difflib

_STABLEHLO = """
abs add after_all all_gather all_reduce all_to_all and async_done async_start atan2 batch_norm_grad
batch_norm_inference batch_norm_training bitcast_convert broadcast broadcast_in_dim case cbrt ceil cholesky clamp
collective_broadcast collective_permute compare complex composite concatenate constant convert convolution cosine
count_leading_zeros create_token cross-replica-sum custom_call divide dot dot_general dynamic_broadcast_in_dim
dynamic_conv dynamic_gather dynamic_iota dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice einsum
exponential exponential_minus_one fft floor gather get_dimension_size get_tuple_element if imag infeed iota is_finite
log log_plus_one logistic map maximum minimum multiply negate not optimization_barrier or outfeed pad partition_id
popcnt power real real_dynamic_slice recv reduce reduce_precision reduce_scatter reduce_window remainder replica_id
reshape reverse rng rng_bit_generator round_nearest_afz round_nearest_even rsqrt scatter select select_and_scatter
send set_dimension_size shift_left shift_right_arithmetic shift_right_logical sign sine slice sort sqrt subtract tan
tanh torch_index_select transpose triangular_solve tuple unary_einsum uniform_dequantize uniform_quantize while xor
"""
_CHLO = """
_asin_acos_kernel acos acosh asin asinh atan atanh bessel_i1e broadcast_add broadcast_and broadcast_atan2
broadcast_compare broadcast_complex broadcast_divide broadcast_maximum broadcast_minimum broadcast_multiply
broadcast_next_after broadcast_or broadcast_polygamma broadcast_power broadcast_remainder broadcast_select
broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical broadcast_subtract broadcast_xor
broadcast_zeta conj constant constant_like cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma mulhi
next_after polygamma ragged_dot scan sinh square tan top_k zeta
"""
_SHARDY = """
all_gather all_reduce all_slice all_to_all collective_permute constant data_flow_edge func_data_flow_edge
manual_computation named_computation propagation_barrier reduce_scatter replicated_to_unreduced reshard
sharded_to_unreduced sharding_constraint sharding_group
"""
_OWN = """
axis_index call dynamic_roll enter_manual leave_manual manual_computation padded_select_and_scatter relayout
sharding_constraint splice
"""

OP_NAMES = frozenset(
    {
        *_STABLEHLO.split(),
        *(f"chlo.{name}" for name in _CHLO.split()),
        *(f"sdy.{name}" for name in _SHARDY.split()),
        *_OWN.split(),
    }
)


def print_op_name(name: str) -> str:
    """An op's name as the text form has it: in quotes if no op of ours is called so."""
    return name if name in OP_NAMES else f'"{name}"'


def expected_op(name: str) -> str:
    """What to say where a name stands that no op has."""
    close = difflib.get_close_matches(name, sorted(OP_NAMES), 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"expected an op ({hint}one of another dialect is written in quotes)"
