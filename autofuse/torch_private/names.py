"""The table of torch's private names: where each is, what it is for, and what happens if it is missing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from autofuse.torch_private.missing import RAISES, Private

# Replacements for missing functions.


def _yes(*_: Any) -> bool:
    return True


def _no(*_: Any) -> bool:
    return False


def _none(*_: Any) -> None:
    return None


def _without_sharing(x: torch.Tensor) -> torch.Tensor:
    return x


def _no_guards(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("This version of torch has no TensorGuards.")


def _nothing(*_: Any) -> list[Any]:
    return []


def _somebody() -> str:
    return "an unknown observer"


def _some() -> list[str]:
    return [_somebody()]


def _tracing_state() -> object:
    return torch.jit.is_tracing() or None  # type: ignore[attr-defined, no-untyped-call]


def _at_once(call: Callable[[], object]) -> None:
    call()


def _set_nothing(_: object) -> None:
    pass


def _is_for_cuda(_: str, key: str) -> bool:
    return key == "AutocastCUDA"


def _softmax_gradient(gradient: Any, weights: Any, dim: int, dtype: torch.dtype) -> Any:
    return ((gradient - (gradient * weights).sum(dim, keepdim=True)) * weights).to(dtype)


def _copied_view(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x.reshape(shape).clone()


def _has_parts(x: object) -> bool:
    return hasattr(x, "__tensor_flatten__") and hasattr(x, "__tensor_unflatten__")


# Objects that are made from several names.


def _any_mode(get: Callable[[Any], Any], *keys: Any) -> Callable[[], bool]:
    return lambda: any(get(key) is not None for key in keys)


def _all_of(*found: Any) -> tuple[Any, ...]:
    return found


def _forward_ad(_: int) -> Any:
    return torch.autograd.forward_ad


_FUNCTORCH = "torch._C._functorch."
_MODE, _KEY = "torch._C._get_dispatch_mode", "torch._C._TorchDispatchModeKey."
_FAKE, _DISPATCH = "torch._subclasses.fake_tensor.", "torch.utils._python_dispatch."
_GLOBAL_HOOKS = tuple(
    f"torch.nn.modules.module._global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre")
)
_CHECKPOINT = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper."
_ATEN = "torch.ops.aten._"
_LOOKS_ON = "nothing is captured, and torch's own code computes all operations"
_DECLINED = "no module is captured: each is declined with this sentence"
_STALE = "compiled code keeps the original forwards until torch.compiler.reset()"
_NO_PROFILE = "profiles end with this sentence"


def _one(path: str, use: str, missing: str, fallback: Any = RAISES) -> Private:
    return Private((path,), use, missing, fallback)


# fmt: off
NAMES: Mapping[str, Private] = {
    # What observes a call. Used at every call, so the modules that use these bind them once.
    "is_any_autocast_enabled": _one("torch._C._is_any_autocast_enabled", "whether autocast is active on any device",
        "each device is checked", _yes),
    "TensorGuards": _one("torch._C._dynamo.guards.TensorGuards", "whether a call equals an earlier kind of call",
        "its tensors are checked one by one, in Python", _no_guards),
    "get_tracing_state": _one("torch._C._get_tracing_state", "whether torch.jit traces",
        "the public torch.jit.is_tracing is used", _tracing_state),
    "set_tracing_state": _one("torch._C._set_tracing_state", "keeping the reads of guards out of torch.jit's traces",
        "a trace contains the sizes that guards read, and torch.jit may find two traces different", _set_nothing),
    "len_torch_dispatch_stack": _one("torch._C._len_torch_dispatch_stack", "whether a dispatch mode is active",
        "every operator of autofuse goes through the dispatcher", _yes),
    "is_profiler_enabled": _one("torch._C._autograd._profiler_enabled", "whether a profiler records",
        "every operator of autofuse goes through the dispatcher, and profiles leave out kernels' own workspace", _yes),
    "peek_interpreter_stack": _one(_FUNCTORCH + "peek_interpreter_stack", "whether torch.func transforms a call",
        _LOOKS_ON, _somebody),
    "get_interpreter_stack": _one(_FUNCTORCH + "get_interpreter_stack", "whether torch.func differentiates twice",
        "second derivatives of fused attention raise torch's own error", tuple),
    "is_gradient_interpreter": Private((_FUNCTORCH + "TransformType.Grad",),
        "which of torch.func's transforms differentiate",
        "second derivatives of fused attention raise torch's own error", _no,
        lambda grad: lambda i: i.key() == grad),
    "is_gradtrackingtensor": _one(_FUNCTORCH + "is_gradtrackingtensor",
        "whether a tensor belongs to torch.func.grad",
        "second derivatives of fused attention raise torch's own error", _no),
    "is_batchedtensor": _one(_FUNCTORCH + "is_batchedtensor", "whether a mask belongs to torch.func.vmap",
        "under vmap a mask gets a gradient from the formula only", _no),
    "get_unwrapped": _one(_FUNCTORCH + "get_unwrapped", "the tensor inside a tensor of torch.func",
        "gradients under torch.func end with this sentence"),
    "forward_ad": Private(("torch.autograd.forward_ad._current_level",),
        "whether forward-mode derivatives are computed",
        "autofuse assumes that they are, and torch's own code computes all operations",
        SimpleNamespace(_current_level=0), _forward_ad),
    "is_fx_symbolic_tracing": _one("torch.fx._symbolic_trace.is_fx_symbolic_tracing", "whether torch.fx traces",
        _LOOKS_ON, _yes),
    "get_current_function_mode_stack": _one("torch.overrides._get_current_function_mode_stack",
        "which function modes are active", _LOOKS_ON, _some),
    "len_torch_function_stack": _one("torch._C._len_torch_function_stack", "whether a function mode is active",
        "each call of a rewritten module lists the active modes", _yes),
    "get_current_dispatch_mode_stack": _one(_DISPATCH + "_get_current_dispatch_mode_stack",
        "which dispatch modes are active", _LOOKS_ON, _some),
    "DeviceContext": _one("torch.utils._device.DeviceContext",
        "distinguishing `with torch.device(...)` from modes that record", "nothing is captured in such a block"),
    "fake_mode": Private((_MODE, _KEY + "FAKE"), "the active FakeTensorMode", _DECLINED, make=partial),
    "is_recorded": Private((_MODE, _KEY + "FAKE", _KEY + "PROXY", _KEY + "FUNCTIONAL"),
        "whether one of torch's own modes records a call", _LOOKS_ON, _yes, _any_mode),
    "disable_current_modes": _one(_DISPATCH + "_disable_current_modes", "hiding autofuse's runs from the user's modes",
        _DECLINED),
    # Copy-on-write memory.
    "lazy_clone": _one("torch._lazy_clone", "noticing writes to a mask's buffer",
        "a mask's buffer is compared at each call", _without_sharing),
    "is_cow_tensor": _one("torch._C._is_cow_tensor", "whether a mask's buffer is still unwritten",
        "a mask's buffer is compared at each call", _no),
    "data_address": _one("torch._C._data_address", "the address of a buffer, without marking it as written",
        "no buffer on a CPU is proven causal", _none),
    "set_version_counter": _one("torch._C._autograd._unsafe_set_version_counter",
        "restoring a tensor that autofuse's own run wrote to", "its version shows the write", _none),
    "storage_users": _one("torch._C._storage_Use_Count", "whether another object holds a mask's memory",
        "autofuse assumes so, and compares a mask's buffer at each call", _none),
    "tensor_users": _one("torch.Tensor._use_count", "whether another object holds a mask's buffer",
        "autofuse assumes so, and compares a mask's buffer at each call", _none),
    "disabled_torch_function": _one("torch._C._disabled_torch_function_impl",
        "which tensor classes do not override torch's functions", "autofuse assumes that only Tensor does not", _none),
    # Hooks.
    "module_call": _one("torch.nn.Module._wrapped_call_impl", "whether Module.__call__ was replaced",
        "Module.__call__ at import time counts as torch's own", torch.nn.Module.__call__),
    "GLOBAL_MODULE_HOOKS": Private(_GLOBAL_HOOKS, "whether there are global module hooks",
        "autofuse assumes hooks, and replaces no module", ({0: "unknown"},),
        _all_of),
    "OPTIMIZER_POST_HOOKS": _one("torch.optim.optimizer._global_optimizer_post_hooks",
        "noticing the end of an optimizer's step, after all other hooks",
        "a step ends with the optimizer's, before other hooks of the user", OrderedDict()),
    "top_saved_tensors_default_hooks": _one("torch._C._autograd._top_saved_tensors_default_hooks",
        "whether saved tensors are hooked", _DECLINED),
    "saved_tensors_hooks_is_enabled": _one("torch._C._autograd._saved_tensors_hooks_is_enabled",
        "whether saved tensors may be hooked", "autofuse hooks them, and torch raises an error if that is forbidden",
        _yes),
    # Fake tensors and operators.
    "FakeTensor": _one(_FAKE + "FakeTensor", "recognizing a tensor without values", _DECLINED),
    "FakeTensorMode": _one(_FAKE + "FakeTensorMode", "running a forward without computing", _DECLINED),
    "unset_fake_temporarily": _one(_FAKE + "unset_fake_temporarily", "reading a real tensor within that mode",
        "sites that need values are declined with this sentence"),
    "TorchDispatchMode": _one(_DISPATCH + "TorchDispatchMode", "recording every operator that runs", _NO_PROFILE),
    "is_traceable_wrapper_subclass": _one(_DISPATCH + "is_traceable_wrapper_subclass",
        "whether a tensor consists of other tensors", "its flatten and unflatten methods are looked up", _has_parts),
    "OpOverload": _one("torch._ops.OpOverload", "the type of an operator", "it is Any"),
    "HigherOrderOperator": _one("torch._ops.HigherOrderOperator",
        "recognizing operators of functions, which have no schema", "their cost is not counted"),
    "pytree": _one("torch.utils._pytree", "flattening nested arguments",
        "calls with nested arguments end with this sentence"),
    "has_kernel_for": _one("torch._C._dispatch_has_kernel_for_dispatch_key",
        "whether autocast has a rule for an operator", "autofuse assumes a rule on CUDA only, as in torch 2.13",
        _is_for_cuda),
    "softmax_backward_data": _one("torch._softmax_backward_data", "the gradient of softmax in one kernel",
        "its formula computes it", _softmax_gradient),
    "unsafe_view": _one(_ATEN + "unsafe_view.default", "a reshaped result that is not a view", "the result is copied",
        _copied_view),
    "GROUPED_MM": _one("torch._grouped_mm", "tracing it like torch.nn.functional.grouped_mm",
        "modules that call it are not traced", None),
    "FUSED_RMS_NORM_BACKWARD": _one(_ATEN + "fused_rms_norm_backward", "whether CUDA has an RMS norm in one kernel",
        "autofuse's kernel is used for few elements, too", "missing"),
    "LOCAL_SCALAR_DENSE": _one(_ATEN + "local_scalar_dense.default", "supplying numbers in steps that are only planned",
        "a step that needs a number cannot be planned", "missing"),
    "CPU_FLASH_ATTENTION": _one(_ATEN + "scaled_dot_product_flash_attention_for_cpu", "counting its FLOPs",
        "torch's own count holds for attention on a CPU", "missing"),
    "CPU_FLASH_ATTENTION_BACKWARD": _one(_ATEN + "scaled_dot_product_flash_attention_for_cpu_backward",
        "counting its FLOPs", "torch's own count holds for attention on a CPU", "missing, backward"),
    "is_avx512_bf16_supported": _one("torch.cpu._is_avx512_bf16_supported", "whether bfloat16 is fast without fusion",
        "autofuse assumes that they are not", _no),
    "is_amx_tile_supported": _one("torch.cpu._is_amx_tile_supported", "whether bfloat16 is fast with fusion",
        "autofuse assumes that they are not", _no),
    "DisableTorchFunction": _one("torch._C.DisableTorchFunction", "arithmetic that function modes do not see",
        "sites are not verified, and the report says why"),
    "DisableTorchFunctionSubclass": _one("torch._C.DisableTorchFunctionSubclass",
        "calling torch's own functions on a lazy tensor", "no logits are lazy, and AF502 says why"),
    # The backward pass.
    "run_backward": _one("torch.autograd.Variable._execution_engine.run_backward", "gradients under a function mode",
        "sites are not verified, and the report says why"),
    "current_autograd_node": _one("torch._C._current_autograd_node", "the node whose gradient is being computed",
        "layers' shares of the backward pass are not separated, and attention has no second derivative", _none),
    "queue_callback": _one("torch.autograd.Variable._execution_engine.queue_callback",
        "keeping the sources of lazy logits at the end of a backward pass", "they are kept earlier", _at_once),
    "will_engine_execute_node": _one("torch._C._will_engine_execute_node",
        "whether a backward pass reaches every leaf", "a loss computes the gradient of its logits, as torch does", _no),
    "current_graph_task_id": _one("torch._C._current_graph_task_id", "whether a backward pass runs", _NO_PROFILE),
    "keeps_graph": _one("torch._C._autograd._get_current_graph_task_keep_graph",
        "whether a gradient may be requested again", "autofuse assumes so, and copies the gradient", _yes),
    "get_sequence_nr": _one("torch.autograd._get_sequence_nr", "which forward pass a node of the graph belongs to",
        _NO_PROFILE),
    "RecordFunctionFast": _one("torch._C._profiler._RecordFunctionFast", "a cheap range in a recorded trace",
        "the public torch.profiler.record_function is used", torch.profiler.record_function),
    "BaseDataLoaderIter": _one("torch.utils.data.dataloader._BaseDataLoaderIter", "the time spent waiting for data",
        "it is not reported", None),
    # Private parts of torch that are expensive to import. Look them up where they are used (`on_demand`).
    "lookup_backend": _one("torch._dynamo.backends.registry.lookup_backend", "the backend behind ours",
        "`then` cannot be given: torch.compile ends with this sentence"),
    "register_backend": _one("torch._dynamo.backends.registry.register_backend",
        "the backend's name in a source tree",
        "torch.compile does not know the name; pass autofuse.integrations.dynamo.analyze itself", _none),
    "dynamo_utils": _one("torch._dynamo.utils", "the graph breaks that Dynamo recorded", "none is reported",
        SimpleNamespace()),
    "compiled_codes": _one("torch._dynamo.convert_frame.input_codes", "what was compiled before optimize", _STALE,
        SimpleNamespace(seen=())),
    "compiled_forms": _one("torch._C._dynamo.eval_frame._debug_get_cache_entry_list",
        "what was compiled before optimize", _STALE, _nothing),
    "reset_code": _one("torch._C._dynamo.eval_frame.reset_code", "compiling a function again", _STALE, _none),
    "OptimizedModule": _one("torch._dynamo.OptimizedModule", "whether a module is compiled",
        "only Module.compile is noticed"),
    "sympy_printer": _one("torch.utils._sympy.printers.PythonPrinter", "compiling a region",
        "regions run uncompiled"),
    "tensor_data_pointer": _one("torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr",
        "loading a compiled region", "each process compiles a region again"),
    "compile_fx": _one("torch._inductor.compile_fx", "compiling a region", "regions run uncompiled"),
    "inductor_config": _one("torch._inductor.config", "compiling a region", "regions run uncompiled"),
    "cpu_vec_isa": _one("torch._inductor.cpu_vec_isa", "the vectors for which a compiler works",
        "Inductor tries every width, which takes seconds", SimpleNamespace()),
    "select_decomp_table": _one("torch._inductor.decomposition.select_decomp_table", "compiling a region",
        "regions run uncompiled"),
    "get_default_store": _one("torch.distributed.distributed_c10d._get_default_store", "agreement between ranks",
        "optimize ends with this sentence if there are other ranks"),
    "MemTracker": _one("torch.distributed._tools.mem_tracker.MemTracker", "the peak of memory in a step",
        "the peak on a CPU ends with this sentence"),
    "apply_activation_checkpointing": _one(_CHECKPOINT + "apply_activation_checkpointing", "plans with checkpointing",
        "such plans end with this sentence"),
}
# fmt: on
