"""What names of kernels show. The names are those of real kernels, with shortened templates."""

from __future__ import annotations

import pytest

from autofuse.ir.operator_categories import ORDER
from autofuse.profiling.trace.kernels import category_of, communicates, own_name, uses_tensor_cores

ON_TENSOR_CORES = """\
volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn
volta_h884gemm_256x64_ldg8_tn
turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn
turing_h1688cudnn_256x64_sliced1x2_ldg8_relu_exp_small_nhwc_tn_v1
ampere_fp16_s16816gemm_fp16_128x64_ldg8_relu_f2f_stages_64x4_tn
ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn
ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_32x3_nn
ampere_h16816gemm_128x64_ldg8_stages_64x4_tn
ampere_int8_i16832gemm_int8_256x128_ldg16_relu_stages_64x3_tn
void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_al
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align8>(cutlass_80_tensorop_bf16_s16816g
void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)
void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nt_align1>(Params)
void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_32x4_nhwc_align4>
sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1
sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x16_kernel
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x256x64_warpgroupsize2x1x1_g1
nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT
nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN
nvjet_sm100_tst_64x32_64x16_2x1_2cta_h_bz_TNT
nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN
void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>(Flash_fwd_params)
void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::half_t>>
void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false>>
void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>>(Params)
void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<CollectiveMainloopBwdSm90>>>
fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, Sm80>
fmha_cutlassB_f16_aligned_128x64_k64_seqaligned_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)
fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80>)
cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0
cudnn_generated_fort_native_sdpa_sm80_flash_bprop_wmma_bf16_knob_30_64x64x128_4x1x1_kernel0_0
void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm10<CollectiveMma<MainloopSm100ArrayTmaUmmaWarpSpec
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized<4>>>
void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaMultistage<MmaTensorOp>>>
triton_tem_fused_mm_3
triton_tem_fused_flex_attention_0
void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168u, 2048u, 128u>
bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_bC32_t128x8x512_s6_et64x8_m64x8x32_cga1x1x4_16dp256b_TN_transOut_schedS_sm100a
void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, true, 4, 8, false>
_attn_fwd
flash_attention_kernel
void cutlass::device_kernel<cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1>
sm89_hmma_gemm_kernel
my_mma_m16n8k16_kernel
Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0
void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<ck::tensor_layout::gemm::RowMajor>>
"""
ON_PLAIN_CORES = """\
volta_sgemm_128x32_nt
ampere_sgemm_128x64_nn
ampere_sgemm_32x32_sliced1x4_tn
volta_hgemm_128x64_nn
turing_fp16_sgemm_fp16_128x64_nn
ampere_scudnn_128x64_relu_small_nn_v1
cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1
void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(cutlass_80_simt_sgemm_256x128_8x4_nt_align1::Params)
void cutlass::Kernel2<cutlass_80_simt_sgemm_64x128_8x5_nn_align1>
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas
void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, __nv_bfloat16, float, __nv_bfloat16, true, false, false>
void splitKreduce_kernel<float, float, float, float, true, false, false>
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>
std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, float>
void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>>>
void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false>>
void flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false>>
void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false>>
void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<80>, cute::C<128>>, cutlass::bfloat16_t>>
void cutlass::device_kernel<flash::FlashAttnBwdPostprocessConvertdQ<cute::tuple<cute::C<80>, cute::C<128>>>>
fmha_cutlassF_f32_aligned_64x64_rf_sm50(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm50>)
fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm75>)
void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)
void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<cutlass_cudnn_train::MatrixShape>>
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor>
void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float const*)
triton_poi_fused_add_cos_sin_0
triton_red_fused__to_copy_mul_sum_2
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long, long)
void vllm::gemma_rms_norm_kernel<c10::BFloat16>
void at::native::vectorized_elementwise_kernel<4, at::native::lgamma_kernel_cuda(at::TensorIteratorBase&)>
void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>
summary_kernel
Cijk_Ailk_Bljk_SB_MT32x32x8_SE_TT4_4_WG8_8_1
void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>
"""


@pytest.mark.parametrize("name", ON_TENSOR_CORES.splitlines())
def test_a_kernel_that_multiplies_on_tensor_cores_is_known(name: str) -> None:
    assert uses_tensor_cores(name)


@pytest.mark.parametrize("name", ON_PLAIN_CORES.splitlines())
def test_a_kernel_without_tensor_cores_is_known(name: str) -> None:
    assert not uses_tensor_cores(name)


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)",
        "rcclGenericKernel(ncclDevComm*, channelMasks, ncclWork*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16>",
        "void c10d::symmetric_memory::one_shot_all_reduce_kernel<c10::BFloat16, 16>",
    ],
)
def test_collectives_are_known(name: str) -> None:
    assert communicates(name)
    assert category_of(name) == "communication"


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::_cuda_scatter_gather_internal_kernel>",
        "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float, unsigned int, at_cuda_detail::cub::Sum>>",
    ],
)
def test_reductions_and_gathers_on_one_device_are_not_collectives(name: str) -> None:
    assert not communicates(name)


@pytest.mark.parametrize(
    "category, name",
    [
        ("matmul", "ampere_sgemm_128x64_nn"),
        ("matmul", "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN"),
        ("matmul", "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1"),
        ("matmul", "ampere_fp16_s16816gemm_fp16_128x64_ldg8_relu_f2f_stages_64x4_tn"),
        ("matmul", "triton_tem_fused_mm_3"),
        ("matmul", "triton_tem_fused_addmm_gelu_7"),
        ("matmul", "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0"),
        ("attention", "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"),
        ("attention", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)"),
        ("attention", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"),
        ("attention", "triton_tem_fused_flex_attention_0"),
        ("softmax", "void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, true, false>(float*)"),
        ("softmax", "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>"),
        ("norm", "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"),
        ("norm", "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>(long)"),
        ("norm", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 32, true, 1, true>"),
        ("activation", "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::Tens"),
        ("activation", "void at::native::vectorized_elementwise_kernel<4, at::native::sigmoid_kernel_cuda(at::Ten"),
        ("random", "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int>"),
        ("random", "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>"),
        ("copy", "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<direct_copy_kernel_cuda"),
        ("copy", "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>"),
        ("copy", "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"),
        ("copy", "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<index_kernel_impl"),
        ("copy", "void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int)"),
        ("copy", "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, fbgemm_gpu::Accessor>"),
        ("reduction", "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor<float>>>"),
        ("elementwise", "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"),
        ("elementwise", "void at::native::unrolled_elementwise_kernel<at::native::AUnaryFunctor<float, MulFunctor>>"),
        ("elementwise", "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"),
        ("optimizer", "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float>"),
        ("optimizer", "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, Fun"),
        ("compiled", "triton_poi_fused_add_cos_sin_0"),
        ("compiled", "triton_per_fused__softmax_2"),
        ("other", "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800>"),
        ("other", "mine"),
    ],
)  # fmt: skip
def test_a_kernel_belongs_to_its_category(category: str, name: str) -> None:
    assert category_of(name) == category
    assert category in ORDER


# Kernels whose templates or words mislead: caches, routing of experts, quantisation, cuDNN's helpers.
MISLEADING = """\
attention|1|void qk_int_sv_f8_attn_kernel<128u, 64u, 32u, 64u, 128u, (DataType)0, (QuantGranularity)3>(signed char*)
attention|1|void qk_int8_sv_f16_accum_f16_attn_inst_buf_kernel<128u, 64u>(signed char*)
elementwise|0|quant_per_block_int8_kernel
elementwise|0|void QuantInt8Kernel<128u, 32u, 2u, true, false, __half>(__half*)
elementwise|0|quant_query_per_thread_int8_kernel
elementwise|0|void SubMeanKernel<128u>(__half*)
elementwise|0|void MeanScaleKernel<64u, 8u, true, __half>(__half*)
copy|0|void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloa
copy|0|void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16>()
copy|0|void flashinfer::AppendPagedKVCacheKernel<128u, 8u, 8u, __nv_bfloat16, int>()
copy|0|void vllm::copy_blocks_kernel<float>(long*)
copy|0|store_kv_cache_kernel
copy|0|_fwd_kernel_destindex_copy_kv
copy|0|set_kv_buffer_kernel
reduction|0|void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<cutlass::bfloat16_t, __nv_bfloat16,
reduction|0|void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>()
copy|0|void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16, cutlass::float_e4m3_t>()
activation|0|void tensorrt_llm::kernels::cutlass_kernels::doActivationKernel<__nv_bfloat16, __nv_bfloat16, cutlass::ep
copy|0|void vllm::moe::moe_align_block_size_kernel<int>()
elementwise|0|void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn, true>()
elementwise|0|void vllm::scaled_fp8_quant_kernel<c10::BFloat16>(c10::Float8_e4m3fn*)
elementwise|0|void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16>()
elementwise|0|_per_token_group_quant_fp8
elementwise|0|void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>()
elementwise|0|void kQuantizeBlockwise<__half, 4096, 4, 0, 0>()
elementwise|0|void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>()
elementwise|0|act_quant_kernel
elementwise|0|void cudnn::ops::scalePackedTensor_kernel<float, float>(long, float*, float)
elementwise|0|void cudnn::ops::op_generic_tensor_kernel<3, float, float, float, 256, (cudnnGenericOp_t)0>()
copy|0|void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>()
reduction|0|void cudnn::pooling_fw_4d_kernel<float, float, cudnn::averpooling_func<float>>()
norm|0|void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>()
matmul|1|void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape, MainloopSm
matmul|1|void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168u, 2048u, 128u>
matmul|1|void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GemmMoeProblemShape, CollectiveMma<MainloopS
matmul|1|fused_moe_kernel
matmul|1|void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, true, 4, 8, false>
attention|1|void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>()
softmax|0|void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>(float const*)
"""


@pytest.mark.parametrize("line", MISLEADING.splitlines())
def test_a_kernels_own_name_takes_precedence_over_its_templates(line: str) -> None:
    category, tensor, name = line.split("|", 2)
    assert category_of(name) == category
    assert uses_tensor_cores(name) == (tensor == "1")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("void vllm::fused_add_rms_norm_static_fp8_quant_kernel<c10::BFloat16, 8, c10::Float8_e4m3fn>()", "norm"),
        ("void vllm::act_and_mul_quant_kernel<c10::BFloat16>()", "activation"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("void awq_gemm_forward_4bit_cuda_m16n128k32<8>()", "matmul"),
    ],
)
def test_quantisation_within_another_kernel_belongs_to_that_kernel(name: str, category: str) -> None:
    assert category_of(name) == category


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("void (anonymous namespace)::softmax_warp_forward<float, a::b, 10>(float*)", "softmax_warp_forward"),
        ("void a::b::kernel<c::d<e>>(int)", "kernel"),
        ("plain", "plain"),
    ],
)
def test_a_kernels_own_name(name: str, own: str) -> None:
    assert own_name(name) == own
