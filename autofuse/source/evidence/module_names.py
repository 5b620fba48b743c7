"""The names that torch's own modules look up in a module while they run.

A change of `torch.nn.Module.forward` affects every layer. A change of `torch.nn.Module.shorthand` affects no layer of
torch. The table holds the names in the code of torch's layers and the attributes of nn.Module. A test compares it with
torch.
"""

from __future__ import annotations

_NAMES = frozenset(
    """
    AssertionError AttributeError BackwardHook Buffer Exception F FakeTensor FutureWarning Integral KeyError
    Mapping Module NotImplementedError OrderedDict Parameter RemovableHandle RuntimeError ScriptMethod
    ScriptModule T_destination Tensor TypeError ValueError add add_module all append apply approximate args beta
    bfloat16 bias bool buffers call_super_init chain children compile compiler copy copy_ cpu cross_entropy cuda
    data detach detach_ dict dim dir discard double dropout dump_patches elementwise_affine empty empty_like eps
    eval extra_repr float format forward gelu get get_buffer get_extra_state
    get_overwrite_module_params_on_conversion get_parameter get_submodule get_swap_module_params_on_conversion
    getattr grad grad_fn half hardtanh hasattr id ignore_index in_features init inplace insert inspect int
    ipu is_compiling is_complex is_floating_point is_lazy is_leaf is_meta is_tensor_like
    is_traceable_wrapper_subclass isdigit isinstance items iter itertools jit join kaiming_uniform_ keys
    kl_div label_smoothing layer_norm legacy_get_string len linear list load_state_dict log_softmax log_target math
    max_val min_val mish module_load modules move_to_end mtia named_buffers named_children named_modules
    named_parameters next next_functions nll_loss nn no_grad normalized_shape numbers ones_ out_features
    overrides p parameter parameters persistent pop pop_scope push_scope reduction register_backward_hook
    register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook relu repr requires_grad requires_grad_ reset_parameters rms_norm rpartition set
    set_extra_state set_submodule setattr setup_input_hook setup_output_hook shape share_memory share_memory_
    sigmoid signature silu size softmax softplus sorted split sqrt startswith state_dict str super swap_tensors
    tanh threshold to to_empty torch train training tuple type typename uniform_ update utils values warn
    warnings weight xpu zero_ zero_grad zeros_
    """.split()
)


def is_looked_up_by_modules(name: str) -> bool:
    """Whether a torch layer may look up `name` in itself; True for every name that begins with an underscore."""
    return name.startswith("_") or name in _NAMES
