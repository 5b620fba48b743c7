"""Operator names are assigned to categories."""

from __future__ import annotations

import pytest

from autofuse.ir.operator_categories import category_of


@pytest.mark.parametrize(
    "category, names",
    [
        ("attention", ["aten::_scaled_dot_product_flash_attention_for_cpu", "flash_attn::_flash_attn_forward"]),
        ("attention", ["aten::_efficient_attention_forward", "autofuse::attention"]),
        ("softmax", ["aten::_softmax", "aten::_softmax_backward_data", "aten::_log_softmax", "aten::_safe_softmax"]),
        ("norm", ["aten::native_layer_norm", "aten::_fused_rms_norm", "aten::native_batch_norm_backward"]),
        ("norm", ["autofuse::dropout_add_norm", "aten::native_group_norm"]),
        ("activation", ["aten::gelu", "aten::gelu_backward", "aten::silu", "aten::erf", "aten::tanh_backward"]),
        ("activation", ["aten::relu", "aten::threshold_backward", "autofuse::gated_mlp", "aten::sigmoid_"]),
        ("matmul", ["aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::mkldnn_convolution"]),
        ("random", ["aten::bernoulli_", "aten::native_dropout", "aten::normal_", "aten::uniform_"]),
        ("copy", ["aten::copy_", "aten::cat", "aten::index_select", "aten::embedding_dense_backward", "aten::tril"]),
        ("reduction", ["aten::sum", "aten::mean", "aten::var", "aten::amax", "aten::linalg_vector_norm"]),
        ("elementwise", ["aten::add", "aten::mul_", "aten::div", "aten::pow", "aten::rsqrt", "aten::masked_fill_"]),
        ("elementwise", ["aten::exp", "aten::where", "aten::fill_", "aten::zero_", "aten::addcmul_"]),
        ("optimizer", ["aten::_foreach_add_", "aten::_fused_adamw_"]),
        ("compiled", ["triton_poi_fused_add_0", "graph_0_cpp_fused_add_mul_0", "## Call CompiledFxGraph f3a ##"]),
        ("communication", ["c10d::allreduce_", "_c10d_functional::all_gather_into_tensor"]),
        ("other", ["aten::sort", "mine::anything"]),
        ("", ["aten::view", "aten::linear", "aten::softmax", "aten::empty", "aten::as_strided_", "aten::matmul"]),
        ("", ["autograd::engine::evaluate_function: MmBackward0", "MmBackward0", "torch::autograd::AccumulateGrad"]),
        (
            "",
            [
                "Optimizer.step#AdamW.step",
                "[memory]",
                "void at::native::copy_kernel<float>",
                "mod::encoder.layer",
                "mod::wte",
            ],
        ),
    ],
)
def test_a_name_belongs_to_its_category(category: str, names: list[str]) -> None:
    assert {name: category_of(name) for name in names} == dict.fromkeys(names, category)
