"""Each private name of torch is in autofuse/torch_private/: torch has it, or the documented replacement works."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from autofuse import torch_private
from autofuse.torch_private import MissingFromTorch, missing
from autofuse.torch_private.names import NAMES

REPOSITORY = Path(__file__).parents[1]
LOOKED_UP = [(name, path) for name, private in NAMES.items() for path in private.paths]


def has(name: str) -> Any:
    return NAMES[name].resolve()


def node() -> Any:
    return (torch.ones(2, requires_grad=True) * 2).grad_fn


def fake() -> Tensor:
    made: Tensor = has("FakeTensorMode")().from_tensor(torch.ones(2))
    return made


def under(mode: AbstractContextManager[Any], ask: Callable[[], Any]) -> Any:
    with mode:
        return ask()


def in_backward(ask: Callable[[], Any]) -> Any:
    """The result of `ask` while a gradient is computed."""
    answers: list[Any] = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: answers.append(ask()))  # type: ignore[no-untyped-call]
    y.sum().backward()
    return answers[0]


def distinguishes_kinds_of_calls(guards: Any) -> bool:
    """Whether guards distinguish calls by dtype, size and autocast, and not by strides."""
    x = torch.ones(2, 3)
    check = guards(x, dynamic_dims_sizes=[[2, 3]], dynamic_dims_strides=[[None, None]]).check
    same = check(x) and check(torch.ones(3, 2).T) and not under(torch.autocast("cpu"), lambda: check(x))
    return bool(same and not any(map(check, (x.double(), torch.ones(3, 3), torch.nn.Parameter(x)))))


def under_vmap(ask: Callable[[Tensor], Any]) -> Any:
    answers: list[Any] = []
    torch.func.vmap(lambda x: (answers.append(ask(x)), x)[1])(torch.ones(2, 2))
    return answers[0]


def under_grad(ask: Callable[[Tensor], Any]) -> Any:
    answers: list[Any] = []
    torch.func.grad(lambda x: (answers.append(ask(x)), x.sum())[1])(torch.ones(2))
    return answers[0]


def under_jit_trace(ask: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    torch.jit.trace(lambda x: (answers.append(ask()), x * 2)[1], torch.ones(2), check_trace=False)  # type: ignore[no-untyped-call]
    return answers[0]


def in_forward_mode(ask: Callable[[], Any]) -> Any:
    return under(torch.autograd.forward_ad.dual_level(), ask)


def under_autocast(ask: Callable[[], Any]) -> Any:
    return under(torch.autocast("cpu"), ask)


def under_profiler(ask: Callable[[], Any]) -> Any:
    return under(torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]), ask)


class EmptyMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def softmax_gradient(gradient_of: Any) -> Tensor:
    torch.manual_seed(0)
    weights, gradient = torch.randn(3, 5).softmax(-1), torch.randn(3, 5)
    made: Tensor = gradient_of(gradient, weights, -1, torch.float32)
    return made


def put_tracing_aside(set_state: Callable[[object], None]) -> tuple[object, bool]:
    """The state of a trace while tracing is suspended, and whether it is restored afterwards."""
    state = has("get_tracing_state")()
    set_state(None)
    aside = has("get_tracing_state")()
    set_state(state)
    return aside, has("get_tracing_state")() is not None


# What autofuse assumes about each name. It holds in the installed torch.
def called_at_the_end_of_a_backward_pass(queue: Any) -> bool:
    called: list[bool] = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: queue(lambda: called.append(x.grad is not None)))
    y.sum().backward()
    return called == [True]


def reaches_the_requested_leaf(asked: Any) -> bool:
    found: list[bool] = []
    x, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    leaf = torch.autograd.graph.get_gradient_edge(other).node
    for inputs in (None, [x]):
        y = x * other
        y.register_hook(lambda g: found.append(asked(leaf)))
        y.sum().backward(inputs=inputs)
    return found == [True, False]


RELIED_ON: dict[str, Callable[[Any], bool]] = {
    "is_any_autocast_enabled": lambda asked: not asked() and under_autocast(asked),
    "TensorGuards": lambda kind: distinguishes_kinds_of_calls(kind),
    "get_tracing_state": lambda asked: asked() is None and under_jit_trace(asked) is not None,
    "set_tracing_state": lambda given: under_jit_trace(lambda: put_tracing_aside(given)) == (None, True),
    "len_torch_dispatch_stack": lambda asked: asked() == 0 and under(EmptyMode(), asked) == 1,
    "is_profiler_enabled": lambda asked: not asked() and under_profiler(asked),
    "peek_interpreter_stack": lambda asked: asked() is None and under_vmap(lambda _: asked()) is not None,
    "get_interpreter_stack": lambda asked: len(under_grad(lambda _: asked())) == 1,
    "is_gradient_interpreter": lambda asked: (
        under_grad(lambda _: asked(has("get_interpreter_stack")()[0]))
        and not under_vmap(lambda _: asked(has("get_interpreter_stack")()[0]))
    ),
    "is_gradtrackingtensor": lambda asked: under_grad(asked) and not asked(torch.ones(1)),
    "is_batchedtensor": lambda asked: under_vmap(asked) and not asked(torch.ones(1)),
    "get_unwrapped": lambda unwrapped: under_vmap(lambda x: type(unwrapped(x)) is Tensor and unwrapped(x).ndim == 2),
    "forward_ad": lambda module: module._current_level == -1 and in_forward_mode(lambda: module._current_level) >= 0,
    "is_fx_symbolic_tracing": lambda asked: not asked(),
    "get_current_function_mode_stack": lambda asked: asked() == [] and len(under(torch.device("cpu"), asked)) == 1,
    "len_torch_function_stack": lambda asked: asked() == 0 and under(torch.device("cpu"), asked) == 1,
    "get_current_dispatch_mode_stack": lambda asked: asked() == [] and len(under(EmptyMode(), asked)) == 1,
    "DeviceContext": lambda kind: isinstance(
        under(torch.device("cpu"), has("get_current_function_mode_stack"))[0], kind
    ),
    "fake_mode": lambda asked: asked() is None and under(mode := has("FakeTensorMode")(), asked) is mode,
    "is_recorded": lambda asked: (
        not asked() and under(has("FakeTensorMode")(), asked) and not under(EmptyMode(), asked)
    ),
    "disable_current_modes": lambda off: under(EmptyMode(), lambda: under(off(), has("len_torch_dispatch_stack"))) == 0,
    "GLOBAL_MODULE_HOOKS": lambda tables: len(tables) == 4 and all(type(t).__name__ == "OrderedDict" for t in tables)
    and hooked_everywhere(tables),
    "OPTIMIZER_POST_HOOKS": lambda table: hooked_after_steps(table),
    "top_saved_tensors_default_hooks": lambda top: top(True) is None
    and under(torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x), lambda: top(True)) is not None,
    "saved_tensors_hooks_is_enabled": lambda asked: asked()
    and not under(torch.autograd.graph.disable_saved_tensors_hooks("not here"), asked),
    "FakeTensor": lambda kind: isinstance(fake(), kind),
    "FakeTensorMode": lambda mode: isinstance(
        mode(allow_non_fake_inputs=True).from_tensor(torch.ones(2), static_shapes=True), has("FakeTensor")
    ),
    "unset_fake_temporarily": lambda off: (
        under(has("FakeTensorMode")(), lambda: under(off(), lambda: type(torch.ones(1)))) is Tensor
    ),
    "TorchDispatchMode": lambda mode: issubclass(EmptyMode, mode),
    "is_traceable_wrapper_subclass": lambda asked: not asked(torch.ones(1)),
    "OpOverload": lambda kind: isinstance(torch.ops.aten.add.Tensor, kind),
    "HigherOrderOperator": lambda kind: isinstance(torch.ops.higher_order.cond, kind),
    "pytree": lambda tree: tree.tree_leaves({"a": [1, (2, None)]}) == [1, 2, None],
    "has_kernel_for": lambda asked: asked("aten::native_layer_norm", "AutocastCUDA")
    and not asked("aten::native_layer_norm", "AutocastCPU"),
    "lazy_clone": lambda of: of(torch.ones(2)).tolist() == [1.0, 1.0],
    "is_cow_tensor": lambda of: of(shared := torch.ones(2)) is False
    and [of(torch._lazy_clone(shared)), of(shared), of(written_to(shared))] == [True, True, False],
    "set_version_counter": lambda of: [of((x := written_to(torch.ones(2)),), (7,)), x._version] == [None, 7],
    "module_call": lambda of: torch.nn.Module.__call__ is of,
    "disabled_torch_function": lambda of: torch.nn.Parameter.__torch_function__ is of,
    "data_address": lambda of: of(held := torch.ones(2)) == held.data_ptr(),
    "storage_users": lambda of: users_of_memory(of) == [2, 3],
    "tensor_users": lambda of: of(torch.ones(2)) == 1,
    "softmax_backward_data": lambda of: bool(
        torch.allclose(softmax_gradient(of), softmax_gradient(NAMES["softmax_backward_data"].fallback), atol=1e-6)
    ),
    "unsafe_view": lambda view: (
        torch.equal(x := view(torch.arange(6.0), (2, 3)), torch.arange(6.0).view(2, 3)) and not x._is_view()
    ),
    "GROUPED_MM": lambda product: (
        product(torch.ones(2, 8), torch.ones(1, 8, 8), offs=torch.tensor([2], dtype=torch.int32)).shape == (2, 8)
    ),
    "FUSED_RMS_NORM_BACKWARD": lambda packet: "grad_out" in str(packet.default._schema),
    "LOCAL_SCALAR_DENSE": lambda operator: operator(torch.tensor(3.0)) == 3.0,
    "CPU_FLASH_ATTENTION": lambda packet: packet(*[torch.ones(1, 1, 4, 8)] * 3)[0].shape == (1, 1, 4, 8),
    "CPU_FLASH_ATTENTION_BACKWARD": lambda packet: "query" in str(packet.default._schema),
    "is_avx512_bf16_supported": lambda asked: asked() in (True, False),
    "is_amx_tile_supported": lambda asked: asked() in (True, False),
    "DisableTorchFunction": lambda off: under(off(), lambda: torch.ones(1)) is not None,
    "DisableTorchFunctionSubclass": lambda off: under(off(), lambda: torch.ones(1)) is not None,
    "queue_callback": lambda queue: called_at_the_end_of_a_backward_pass(queue),
    "will_engine_execute_node": lambda asked: reaches_the_requested_leaf(asked),
    "run_backward": lambda run: gradient_by(run) == 2.0,
    "current_autograd_node": lambda asked: asked() is None and in_backward(asked) is not None,
    "current_graph_task_id": lambda asked: asked() == -1 and in_backward(asked) >= 0,
    "keeps_graph": lambda asked: not in_backward(asked),
    "get_sequence_nr": lambda asked: asked() <= node()._sequence_nr() < asked(),
    "RecordFunctionFast": lambda span: under(span("ours"), lambda: True),
    "BaseDataLoaderIter": lambda kind: isinstance(iter(torch.utils.data.DataLoader([1, 2])), kind),  # type: ignore[arg-type]
    "lookup_backend": lambda look: callable(look("eager")),
    "register_backend": lambda register: callable(register(lambda gm, _: gm.forward, name="autofuse_test_backend")),
    "dynamo_utils": lambda utils: type(utils.graph_break_reasons) is list and callable(utils.get_compilation_metrics),
    "compiled_codes": lambda codes: doubled_code() in [reference() for reference in codes.seen],
    "compiled_forms": lambda forms: "TYPE_MATCH" in str(forms(doubled_code())[0].guard_manager),
    "reset_code": lambda reset: len(has("compiled_forms")(code := doubled_code())) >= 1
    and reset(code) is None
    and not has("compiled_forms")(code),
    "OptimizedModule": lambda kind: isinstance(torch.compile(nn.Identity()), kind),
    "sympy_printer": lambda printer: printer().doprint(sympy.Eq(sympy.Symbol("s0", integer=True), 1)) == "s0 == 1",
    "tensor_data_pointer": lambda address: isinstance(address, int) and address > 0,
    "compile_fx": lambda module: callable(module.compile_fx_inner),
    "inductor_config": lambda config: under(config.patch({"cpp.threads": 1, "compile_threads": 1}), lambda: True),
    "cpu_vec_isa": lambda isa: (
        isa.valid_vec_isa_list.cache_info() and isa.supported_vec_isa_list and isinstance(isa.x86_isa_checker(), list)
    ),
    "select_decomp_table": lambda select: torch.ops.aten.native_dropout.default in select(),
    "get_default_store": callable,
    "MemTracker": lambda kind: callable(kind.get_tracker_snapshot),
    "apply_activation_checkpointing": callable,
}  # fmt: skip


def doubled_code() -> Any:
    """The code of a forward that was compiled."""

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.training

    torch.compile(Doubled(), backend="eager")(torch.ones(2))
    return Doubled.forward.__code__  # of every such class


def hooked_everywhere(tables: tuple[Mapping[int, Any], ...]) -> bool:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    seen = any(tables)
    handle.remove()
    return seen and not any(tables)


def written_to(x: Tensor) -> Tensor:
    x.data.fill_(2)
    return x


def users_of_memory(of: Any) -> list[int]:
    x = torch.ones(2)
    storage = x.untyped_storage()
    alone, view = of(storage._cdata), x.view(-1)
    return [alone, of(view.untyped_storage()._cdata)]


def gradient_by(run: Any) -> float:
    x = torch.ones((), requires_grad=True)
    (found,) = run((x * 2,), (torch.ones(()),), False, False, (x,), True, accumulate_grad=False)
    return float(found)


def hooked_after_steps(table: Mapping[int, Any]) -> bool:
    handle = register_optimizer_step_post_hook(lambda *_: None)
    seen = next(reversed(table)) == handle.id
    handle.remove()
    return seen


def test_each_name_has_a_test_and_each_entry_has_a_purpose_and_a_replacement() -> None:
    assert set(RELIED_ON) == set(NAMES)
    for name, private in NAMES.items():
        assert private.use and private.missing and not private.missing.endswith("."), name
        assert all(p.startswith("torch.") for p in private.paths), name


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_torch_has_the_name_with_the_expected_behaviour(name: str) -> None:
    assert RELIED_ON[name](has(name))


@pytest.mark.parametrize(("name", "path"), LOOKED_UP)
def test_without_the_name_the_listed_replacement_is_used(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "resolve_name", _without(path))
    found, private = torch_private.look_up(name), NAMES[name]
    if private.fallback is not missing.RAISES:
        assert found is private.fallback
        return
    for use in (lambda: found(), lambda: found.anything):
        with pytest.raises(MissingFromTorch) as raised:
            use()
        message = str(raised.value)
        assert all(p in message for p in (torch.__version__, private.use, private.missing, path)), message
    assert not isinstance(torch.ones(1), found)
    assert type("Ours", (found,), {}).__mro__[1] is found


# Cautious answers: what cannot be known counts as observed or hooked, and torch's own code computes.
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("peek_interpreter_stack", "an unknown observer"), ("is_fx_symbolic_tracing", True), ("is_recorded", True),
        ("is_any_autocast_enabled", True), ("is_profiler_enabled", True), ("len_torch_dispatch_stack", True),
        ("get_current_function_mode_stack", ["an unknown observer"]), ("saved_tensors_hooks_is_enabled", True),
        ("keeps_graph", True), ("is_avx512_bf16_supported", False), ("current_autograd_node", None),
        ("get_tracing_state", None), ("get_interpreter_stack", ()),
    ],
)  # fmt: skip
def test_an_unknown_state_counts_as_the_case_that_changes_nothing(name: str, answer: object) -> None:
    assert NAMES[name].fallback() == answer


def test_a_replacement_computes_the_same() -> None:
    x = torch.randn(2, 3, 4)
    copied = NAMES["unsafe_view"].fallback(x.flatten(0, 1), x.shape)
    assert torch.equal(copied, x) and not copied._is_view()
    for operator in ("native_layer_norm", "linear", "softmax.int"):
        for device in ("CPU", "CUDA"):
            here = has("has_kernel_for")(f"aten::{operator}", f"Autocast{device}")
            if operator == "native_layer_norm":
                assert NAMES["has_kernel_for"].fallback(f"aten::{operator}", f"Autocast{device}") == here
    assert under_jit_trace(NAMES["get_tracing_state"].fallback)


def test_an_unlisted_name_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"names\.py"):
        _ = torch_private.no_such_name


def test_the_mark_is_what_torchs_own_decorator_sets() -> None:
    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    assert vars(torch_private.assumed_constant(ours)) == vars(torch.compiler.assume_constant_result(theirs))


def test_the_log_of_fake_tensors_has_the_name_that_torch_uses() -> None:
    assert torch._subclasses.fake_tensor.log is logging.getLogger(torch_private.FAKE_TENSOR_LOG)


# A torch without one of the names: autofuse is imported, and a model computes what it did.

WITHOUT = """\
import json, os, sys
import torch
from torch import nn
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(16), nn.Linear(16, 48)
    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-2, -1) / 4.0, dim=-1) @ v
def tried(path):
    from autofuse.torch_private import missing
    resolve = missing.resolve_name
    def without(wanted):
        if wanted == path:
            raise AttributeError(path)
        return resolve(wanted)
    missing.resolve_name = without
    import autofuse
    import autofuse.fx.session.optimize, autofuse.integrations.eager_first, autofuse.profiling.live.profile
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(2, 8, 16)
    expected = model(x)
    try:
        autofuse.optimize(model, x)
        said = " ".join(str(s.reason) for s in autofuse.report(model).sites)
    except autofuse.torch_private.MissingFromTorch as error:
        said = str(error)
    found = model(x)
    found.sum().backward()
    return [bool(torch.allclose(found, expected, atol=1e-5)), said]
for path in sys.argv[1:]:
    sys.stdout.flush()
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            answer = tried(path)
        except BaseException as error:
            answer = [False, f"{type(error).__name__}: {error}"]
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    print(json.dumps([path, *json.loads(os.fdopen(read).read())]))
    os.waitpid(child, 0)
"""


PATHS = sorted({path for _, path in LOOKED_UP if not re.search(r"_dynamo|_inductor|distributed", path)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "paths",
    [
        pytest.param(PATHS[::24], id="every twenty-fourth"),
        pytest.param([p for i, p in enumerate(PATHS) if i % 24], id="the others", marks=pytest.mark.night),
    ],
)
def test_autofuse_is_imported_and_models_compute_the_same_without_any_single_name(paths: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, *paths], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [path for path, *_ in rows] == paths
    assert {path: said for path, same, said in rows if not same} == {}


def _without(path: str) -> Callable[[str], Any]:
    real = missing.resolve_name

    def resolve(wanted: str) -> Any:
        if wanted == path:
            raise AttributeError(f"no {path}")
        return real(wanted)

    return resolve
