"""What a recorder does when its twin reads an attribute.

Attributes that are plain values become guards, tensors become reads of that attribute. Writing to an attribute, or to
a list or a dict that an attribute holds, ends the trace: a graph would not repeat it.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.child_reads import ChildReads
from autofuse.fx.trace.class_questions import class_guard, is_guarded, is_torchs
from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.dict_reads import goes_through
from autofuse.fx.trace.external_state import ExternalState
from autofuse.fx.trace.foreign_calls import ForeignCalls
from autofuse.fx.trace.functions_found import FunctionsFound
from autofuse.fx.trace.read_set import ReadSet
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.snapshots import OutsideChange
from autofuse.fx.trace.source_lines import SourceLine, user_place
from autofuse.fx.trace.twin import CODE, CONTAINERS, SCALARS, is_twin, original_class, plain_class
from autofuse.fx.trace.value_facts import is_plain
from autofuse.fx.trace.values import HeldTensor, Untraceable, tensors
from autofuse.ir.vocabulary import MODULES
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because
from autofuse.torch_private import FakeTensor, FakeTensorMode

_NOTHING = object()
_PARAMETERS = 2  # a weight and a bias
_MARKS = frozenset({"_is_param", "_is_buffer", "_dynamo_dynamic_indices", "_dynamo_static_input_type"})  # of torch's
_CATCHES = frozenset({"AttributeError", "Exception"})
_LARGEST_ARRAY = 4096  # bytes that are compared at each call
_OF_BUFFERS = "persistent"  # what nn.Buffer notes on a tensor


class AttributeReads(ForeignCalls):
    """What a Recorder hears of attributes. `outside`: what the code that runs can change."""

    outside: ExternalState

    def begin_watching(self) -> None:
        self.owners: dict[int, str] = {}  # id of a twin -> how a guard reaches it
        self.paths: dict[int, str] = {}  # id of a twin module -> its name below the root
        self.entered_children: set[str] = set()  # children that were entered
        self.child_reads = ChildReads()
        self.handed: dict[int, fx.Node] = {}  # id of a twin module that is an argument -> its placeholder
        self._snapshots: list[tuple[str, Any, list[Any], SourceLine | None]] = []
        self._tables: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        self._keep: list[Any] = []
        for name, module in self.root.named_modules():
            self._tables.append((module, dict(module._buffers)))
            self.owners[id(module)], self.paths[id(module)] = guard_path(name), name
        self._real_reads: list[tuple[str, Any, str]] = []  # what attributes hold that is no twin
        self._first_names: dict[int, str] = {}  # of parameters and buffers
        self.classes_given: list[type] = []  # as arguments
        self.operators: set[str] = set()  # of tensors, that were called
        self._tensors_read: dict[
            str, type
        ] = {}  # how a guard reaches the tensors of modules that were read, their classes
        self._names_read: dict[type, set[str]] = {}  # by which tensors are read, of the classes that hold them
        self.forms_rest_on_children = False  # whether a child returns more than a tensor
        self.overheard: list[tuple[Any, str, Any]] | None = None  # what a child reads while it runs

    def finish_watching(self) -> None:
        """Raises Untraceable where forward changed a container that outlives it, or drew random numbers unseen."""
        for text, container, before, place in self._snapshots:
            after = _contents(container)
            if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
                raise Untraceable(because(forwards.CHANGES, target=text), place, passing=True)
        for module, buffers in self._tables:
            for name, x in module._buffers.items():
                if x is not buffers.get(name) and self.alias_sources.get(id(x), _NOTHING) is not buffers.get(name):
                    self.refuse(because(forwards.REGISTERS_BUFFER, name=name), passing=True)
        for held in self.held.values():
            if names := sorted(n for n in vars(held.tensor) if _is_users_name(n) and n != _OF_BUFFERS):
                self.refuse(because(forwards.ASSIGNS, target=f"{names[0]} of a tensor"))
        if self.refused is not None:
            raise self.refused

    def attributes_asked(self) -> frozenset[str]:
        """Names that forward may ask tensors for, and that tensors do not have: `getattr(x, "scale", 0.25)`."""
        facts = [facts_of(r.code) for r in self.outside.ran if not r.paused]
        texts = (n for f in facts if f.by_name for n in f.texts)
        caught = (n for f in facts if any(load.name in _CATCHES for load in f.loads) for n in f.attribute_names(None))
        return frozenset(n for n in (*texts, *caught) if not hasattr(Tensor, n))

    def guard_absent_attributes(self) -> None:
        """What forward asks tensors for, and they lack, the module's own must not get: `weight.lr_scale`."""
        if names := self.attributes_asked():
            for text in self._tensors_read:
                self.guards.add(f"{self.guards.name_of(names)}.isdisjoint({text}.__dict__)")

    def class_guard(self) -> str:
        """The test of the class of a tensor; "" where forward asks no value for its class."""
        held = [value for _, value, _ in self._real_reads]
        return class_guard((r for r in self.outside.ran if not r.paused), held)

    def guard_classes(self) -> None:
        """The module's own tensors keep their classes where forward may ask: `isinstance(self.weight, Quantized)`."""
        test = self.class_guard()
        for text, cls in self._tensors_read.items() if test else ():
            self.refuse_other_class(cls)
            if is_guarded(cls):
                self.guards.add(test.format(text, self.guards.constant(cls)))

    def refuse_other_class(self, cls: type) -> None:
        """Where forward asks tensors for their classes, a stand-in is none for a tensor of a class of the user's."""
        if issubclass(cls, Tensor) and not is_torchs(cls):
            self.refuse(because(forwards.ASKS_TENSOR_CLASS, kind=cls.__qualname__))

    def belongs_to_module(self, container: Any) -> bool:
        return self.lies_outside(container) or any(held is container for _, held, *_ in self._snapshots)

    def stop(self, why: Reason, _: bool) -> None:
        """The user's code is about to do what has an effect."""
        self.refuse(why)

    def check_kept(self, changes: Iterable[OutsideChange]) -> None:
        """Raises Untraceable where forward changed what lies outside of the module.

        A mask that is put into a cache is put there by the original, at the next call.
        """
        repeated = {*self.tracked, *self.reached_by_objects()}
        for change in changes:
            if id(change.owner) in repeated:
                continue  # an argument: what is written to it is repeated
            if effects.random_state(change.owner) is not None:
                self.refuse(because(forwards.DRAWS_RANDOM))
            cached = [t for value in change.added for t in tensors(value)]
            fills = change.may_be_cache and bool(cached) and all(map(self.is_constant, cached))
            self.refuse(because(forwards.KEEPS_OUTSIDE, name=change.name), passing=fills)

    def close(self, outside: ExternalState) -> None:
        """Guard what forward read besides its arguments and its module. Raises Untraceable where that is impossible."""
        self._guard_children_asked(outside)
        self.guard_absent_attributes()
        self.guard_classes()
        reads = ReadSet(self.guards, FunctionsFound(self.world.functions), self.refuse)
        for text, value, name in self._real_reads:
            reads.guard_value(text, value, name)
        for cls, names in self._names_read.items():
            reads.guard_unshadowed(cls, names)
        ran = [r for r in outside.ran if not r.paused]
        if self.forms_rest_on_children:
            reads.guard_constants([r for r in outside.ran if r.paused])
        asked = [original_class(type(m)) for m in self.world.twins() if id(m) in self.owners]
        reads.close(ran, asked, self.classes_given, self.operators)
        for ask in outside.asked:
            ask(reads)

    def _guard_children_asked(self, outside: ExternalState) -> None:
        """A child whose class forward may have asked for is one of that class, or there is none."""
        called = {str(n.target) for n in self.graph.nodes if n.op == "call_module"} | self.entered_children
        known = [m for path, m in self.root.named_modules() if path in called]
        for child in self.child_reads.asked([r for r in outside.ran if not r.paused], known):
            path = self.paths.get(id(child))
            if path:
                cls = self.guards.constant(plain_class(original_class(type(child))))
                self.guards.add(f"_of_class({guard_path(path)}, {cls})")

    # Attributes.

    def on_read(self, owner: Any, name: str, value: Any) -> Any:
        """`owner.name` was read and is `value`; what forward gets to see."""
        value = self._twin_of_object(owner, name, value)
        if self.paused:
            if self.overheard is not None:
                self.overheard.append((owner, name, value))
            return value
        with self.pause_recording():
            self._heard(owner, name, value)
        return value

    def _heard(self, owner: Any, name: str, value: Any) -> None:
        text = self.owners.get(id(owner))
        if isinstance(value, nn.Module) and id(value) in self.paths:
            self.child_reads.read(value)
        elif isinstance(owner, nn.Module) and owner is not self.root and not _has(owner, name):
            self.child_reads.of_class(owner)
        if isinstance(value, SCALARS):
            self._guard_scalar(owner, text, name, value)
        elif isinstance(value, Tensor):
            self._register_tensor(value, owner, name)
        elif isinstance(value, CODE):
            self._guard_code(owner, text, name, value)
        elif isinstance(value, nn.Module) or is_computed(owner, name):
            self._guard_other_name(owner, name, self.paths.get(id(value)))  # what a property reads is guarded
        elif text is None:
            self.refuse(because(forwards.READS_UNREACHED, name=name, kind=type(owner).__name__))
        else:
            self._guard_held(owner, f"{text}.{name}", name, value)

    def _guard_other_name(self, owner: Any, name: str, first: str | None) -> None:
        """What has several names is read by the first in a graph: the others must go on being names of it."""
        path = self.paths.get(id(owner))
        here = None if path is None else f"{path}.{name}".lstrip(".")
        if first is None or here is None or here == first:
            return
        try:
            tensor = isinstance(self.root.get_submodule(first), Tensor)
        except AttributeError:
            tensor = True
        reach = (lambda n: guard_tensor(self.root, n)) if tensor else guard_path
        self.guards.add(f"{reach(here)} is {reach(first)}")

    def _guard_held(self, owner: Any, text: str, name: str, value: Any) -> None:
        """An attribute that is an object, a container, an array."""
        if is_plain(value):
            self.guards.alike(text, value)
        elif kind := effects.kind_of_state(value):
            self.refuse(because(forwards.READS_STATE, name=name, kind=kind))
        elif not holds(owner, name, value):  # of the class, so it is the user's own
            self._real_reads.append((text, value, name))
            self.outside.note(value, text)
        elif isinstance(value, CONTAINERS):
            self._register_container(value, text, owner, name)
        else:
            self._guard_object(text, name, value)

    def _guard_object(self, text: str, name: str, value: Any) -> None:
        if effects.is_array(value):
            if value.nbytes > _LARGEST_ARRAY or value.dtype.hasobject:
                self.refuse(because(forwards.READS_TOO_MUCH, name=name))
            self.guards.equal(f"{text}.shape", value.shape)
            self.guards.add(f"{text}.dtype == {self.guards.constant(value.dtype)}")
            self.guards.equal(f"{text}.tobytes()", value.tobytes())
        elif is_twin(value):
            self.guards.same(f"type({text})", original_class(type(value)))
            self.owners.setdefault(id(value), text)
        elif effects.random_state(value) is None:
            self._real_reads.append((text, value, name))
        self._keep.append(value)
        self.outside.snapshot.note(value, text)

    def on_read_dict(self, owner: Any, inside: dict[str, Any], code: types.CodeType) -> None:
        """`self.__dict__` or `vars(self)` was read: what has the name of a text in that code is guarded."""
        names = [n for n in facts_of(code).texts if n in inside]
        if not names or goes_through(code):
            self.refuse(because(forwards.READS_DICT, name="__dict__"))
        for name in names:
            self.on_read(owner, name, inside[name])
        text = self.owners.get(id(owner))
        for name in sorted(n for n in facts_of(code).texts if n not in inside and n.isidentifier()):
            if text is None:
                self.refuse(because(forwards.READS_DICT, name="__dict__"))
            self.guards.add(f"{name!r} not in {text}.__dict__")

    def on_read_table(self, owner: nn.Module, name: str) -> None:
        """A loop goes over the children, the parameters or the hooks of a module, or counts them."""
        text, table = self.owners.get(id(owner)), vars(self.world.originals[id(owner)])[name]
        if text is None:
            self.refuse(because(forwards.READS_OTHER_MODULE, name=name))
        if "hook" not in name:
            self.guards.add(keys_guard(f"{text}.{name}", table, isinstance(owner, nn.ModuleList)))
            self.child_reads.listed(m for m in vars(owner)[name].values() if isinstance(m, nn.Module))
        elif table:
            self.refuse(because(forwards.READS_STATE, name=name, kind="hook"))
        else:
            self.guards.add(f"not {text}.{name}")

    def guard_overheard(self, heard: Iterable[tuple[Any, str, Any]]) -> None:
        """Hold what a child read of itself: whether it returns a tuple, or None in it, may follow from a flag."""
        for owner, name, value in heard:
            text = self.owners.get(id(owner))
            if text is None or is_computed(owner, name):
                continue
            if isinstance(value, SCALARS) and not isinstance(value, float):
                torchs = original_class(type(owner)).__module__.startswith("torch.nn.")
                None if torchs else self._guard_scalar(owner, text, name, value)
            elif is_twin(value) and not isinstance(value, nn.Module):
                self.owners.setdefault(id(value), f"{text}.{name}")
                self._keep.append(value)

    def on_missing(self, owner: Any, name: str) -> None:
        text = self.owners.get(id(owner))
        if text is not None:
            self.guards.add(f"_lacks({text}, {name!r})")

    def on_store(self, owner: Any, name: str, value: Any) -> None:
        """`self.mask = self.mask.to(x.device)` mostly assigns what is there already."""
        if self._is_there(owner, name, value):
            return
        target = f"{'self' if owner is self.root else type(owner).__name__}.{name}"
        self.refuse(because(forwards.ASSIGNS, target=target), passing=True)

    def _is_there(self, owner: Any, name: str, value: Any) -> bool:
        inside = object.__getattribute__(owner, "__dict__")
        tables = [inside, *(inside.get(t) or {} for t in ("_buffers", "_parameters"))]
        there = next((t[name] for t in tables if name in t), _NOTHING)
        if isinstance(value, Tensor):
            return there is not _NOTHING and (value is there or self.alias_sources.get(id(value)) is there)
        text = self.owners.get(id(owner))
        if text is None or not isinstance(value, SCALARS) or type(value) is not type(there) or value != there:
            return False
        self._guard_scalar(owner, text, name, value)
        return True

    def _twin_of_object(self, owner: Any, name: str, value: Any) -> Any:
        """Objects that are neither tensors nor modules are copied when they are first read."""
        inside = object.__getattribute__(owner, "__dict__")
        if inside.get(name) is not value or isinstance(value, (*SCALARS, *CONTAINERS, *CODE, Tensor, nn.Module)):
            return value
        if effects.kind_of_state(value):
            return value
        with self.pause_recording():
            made = self.world.of(value)
        inside[name] = made
        return made

    def _guard_scalar(self, owner: Any, text: str | None, name: str, value: Any) -> None:
        if text is None:
            if isinstance(owner, nn.Module):
                self.refuse(because(forwards.READS_OTHER_MODULE, name=name))
            self.refuse(because(forwards.READS_UNREACHED, name=name, kind=type(owner).__name__))
        if is_computed(owner, name):
            return  # what the property reads is guarded
        if isinstance(owner, nn.Module) and value is None:
            for table in ("_parameters", "_buffers", "_modules"):
                if name in owner.__dict__[table]:
                    self.guards.add(f'{text}.{table}["{name}"] is None')
                    return
        if effects.is_users(type(value)) and not isinstance(value, enum.Enum):  # a number with methods
            self._real_reads.append((f"{text}.{name}", value, name))
        self.guards.equal(f"{text}.{name}", value)

    def _guard_code(self, owner: Any, text: str | None, name: str, value: Any) -> None:
        """A function that an instance holds, such as its activation: another one may be put in its place."""
        if text is None:
            return
        if name in object.__getattribute__(owner, "__dict__"):
            self._same_code(f"{text}.{name}", value)
            return
        self.guards.add(f'"{name}" not in {text}.__dict__')  # the class is asked: read_set.py guards what it has
        if not isinstance(value, types.MethodType) and not is_computed(owner, name):
            self._real_reads.append((f"{text}.{name}", value, name))

    def _same_code(self, text: str, value: Any) -> None:
        if not isinstance(value, (types.MethodType, functools.partial)):
            users = self.world.functions.get(id(value), value)
            self._real_reads.append((text, users, text.rpartition(".")[2]))
            self._same_closure(text, value)
            return
        self.guards.same(f"type({text})", type(value))  # copies of a module have one of their own
        if isinstance(value, types.MethodType):
            self.guards.same(f"{text}.__func__", value.__func__)
            if is_twin(value.__self__):
                self.owners.setdefault(id(value.__self__), f"{text}.__self__")
            else:
                self._real_reads.append((f"{text}.__self__", value.__self__, text.rpartition(".")[2]))
            return
        self._same_code(f"{text}.func", value.func)
        for place, given in enumerate(value.args):
            self._guard_part(f"{text}.args[{place}]", given)
        for key, given in value.keywords.items():
            self._guard_part(f"{text}.keywords[{key!r}]", given)
        self.guards.add(f"len({text}.args) == {len(value.args)}")
        self.guards.add(f"len({text}.keywords) == {len(value.keywords)}")

    def _same_closure(self, text: str, value: Any) -> None:
        """A copy of a module holds the same functions, which then run the original's children."""
        if id(value) not in self.world.functions:
            return
        for place, cell in enumerate(value.__closure__):
            if isinstance(cell.cell_contents, nn.Module) and id(cell.cell_contents) in self.paths:
                reach = guard_path(self.paths[id(cell.cell_contents)])
                self.guards.add(f"{text}.__closure__[{place}].cell_contents is {reach}")

    def _register_tensor(self, x: Tensor, owner: Any, name: str) -> None:
        """A tensor that is a plain attribute (parameters and buffers are found by parameter())."""
        if id(x) in self.held or self.parameter(x) is not None:
            if id(owner) in self.paths:
                path = f"{self.paths[id(owner)]}.{name}".lstrip(".")
                self._tensors_read[guard_tensor(self.root, path)] = self._class_of(owner, name)
                self._names_read.setdefault(original_class(type(owner)), set()).add(name)
            self._guard_other_name(owner, name, self._first_names.get(id(x)))
            return
        if isinstance(owner, nn.Module) and id(owner) in self.paths:
            target = f"{self.paths[id(owner)]}.{name}".lstrip(".")
            self.hold(x, lambda: self.graph.get_attr(target), _fixed_sizes(x))
            text = f"{self.owners[id(owner)]}.{name}"
            self.guards.add(f"isinstance({text}, _Tensor)")
            self._tensors_read[text] = self._class_of(owner, name)

    def _class_of(self, owner: nn.Module, name: str) -> type:
        """The class of a tensor of the user's module, of which a stand-in was read."""
        inside = vars(self.world.originals[id(owner)])
        tables = (inside["_parameters"], inside["_buffers"], inside)
        return type(next((t[name] for t in tables if name in t), None))

    def _register_container(self, value: Any, text: str, owner: Any, name: str) -> None:
        if any(container is value for _, container, *_ in self._snapshots):
            return
        self._snapshots.append((text, value, _contents(value), user_place()))
        self.outside.snapshot.note(value, text)
        if _plain(value):
            self.guards.equal(text, type(value)(value))
            return
        make = None
        if isinstance(owner, nn.Module) and id(owner) in self.paths:
            target = f"{self.paths[id(owner)]}.{name}".lstrip(".")
            make = lambda: self.graph.create_node("get_attr", target)
        self._register_items(value, make, text)

    def _register_items(self, value: Any, make: Callable[[], fx.Node] | None, text: str) -> None:
        """What a container holds stays there: a cache may be filled, or emptied, by another call."""
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if isinstance(value, (set, frozenset)) or not all(map(is_plain, keys)):
            if any(not isinstance(v, (Tensor, nn.Module)) for v in value):
                self.refuse(because(forwards.READS_STATE, name=text, kind=type(value).__name__))
            return
        self.guards.add(f"tuple({text}) == {self.guards.name_of(tuple(keys))}" if isinstance(value, dict)
                        else f"len({text}) == {len(value)}")  # fmt: skip
        for key in keys:
            item, get = value[key], self._getter(make, key) if make is not None else None
            if isinstance(item, Tensor):
                if get is not None and id(item) not in self.held and self.parameter(item) is None:
                    self.hold(item, get, _fixed_sizes(item))
            elif isinstance(item, CONTAINERS) and not is_plain(item):
                self._register_items(item, get, f"{text}[{key!r}]")
            else:
                self._guard_part(f"{text}[{self.guards.name_of(key)}]", item)

    def _guard_part(self, text: str, item: Any) -> None:
        """What stands in a container, or among the arguments of a partial function."""
        if isinstance(item, nn.Module):
            if id(item) in self.paths:
                self.guards.add(f"{text} is {guard_path(self.paths[id(item)])}")
        elif isinstance(item, SCALARS):
            self.guards.equal(text, item)
        elif is_plain(item):
            self.guards.alike(text, item)
        elif isinstance(item, CODE):
            self._same_code(text, item)
        elif kind := effects.kind_of_state(item):
            self.refuse(because(forwards.READS_STATE, name=text, kind=kind))
        elif not isinstance(item, (Tensor, *CONTAINERS)):
            self._guard_object(text, text, item)

    def _getter(self, make: Callable[[], fx.Node], key: Any) -> Callable[[], fx.Node]:
        return lambda: self.graph.call_function(_getitem, (make(), key))

    def parameter(self, x: Tensor) -> HeldTensor | None:
        """Hold a parameter or a buffer below the root; None if `x` is neither."""
        with self.pause_recording():
            named = (
                *self.root.named_parameters(remove_duplicate=False),
                *self.root.named_buffers(remove_duplicate=False),
            )
        for name, p in named:
            self._first_names.setdefault(id(p), name)
            if id(p) not in self.held:
                self.hold(p, self._attribute_maker(name), _fixed_sizes(p))
        return self.held.get(id(x))

    def _attribute_maker(self, name: str) -> Callable[[], fx.Node]:
        return lambda: self.graph.create_node("get_attr", name)


def guard_path(name: str) -> str:
    """How a guard reaches the module called `name` below self: nn.Module.__getattr__ would be slow."""
    return "self" + "".join(f'._modules["{part}"]' for part in name.split(".") if part)


def guard_inside(name: str, attribute: str) -> str:
    """How a guard reads what the instance itself keeps, in the module called `name` below self."""
    return f'{guard_path(name)}.__dict__["{attribute}"]'


def guard_tensor(root: nn.Module, name: str) -> str:
    """How a guard reads the parameter, buffer or attribute that is called `name` below `root`."""
    path, _, attribute = name.rpartition(".")
    owner, reach = root.get_submodule(path), guard_path(path)
    if attribute in vars(owner)["_parameters"]:
        return f'_held({reach}, "_parameters", "{attribute}")'
    return f'{reach}._buffers["{attribute}"]' if attribute in vars(owner)["_buffers"] else f"{reach}.{attribute}"


def keys_guard(text: str, table: dict[str, Any], numbered: bool) -> str:
    """A test that a table of children or parameters has the names that it has now; `numbered`: they count from 0."""
    if not table:
        return f"not {text}"
    return f"len({text}) == {len(table)}" if numbered else f"tuple({text}) == {tuple(table)!r}"


def is_known(kind: type) -> bool:
    """Whether modules of exactly this class are one operation of the vocabulary."""
    torchs = kind.__module__.startswith("torch.nn.modules.") and f"torch.nn.{kind.__name__}" in MODULES
    return (
        torchs and getattr(getattr(kind, "forward", None), "__module__", "") == kind.__module__
    )  # nobody put another in its place


def is_light(module: nn.Module) -> bool:
    """Whether a module is a layer of the vocabulary, or has a weight and a bias at most, and such layers without."""
    if is_known(type(module)):
        return True
    own = not type(module).__module__.startswith("torch.") and len(module._parameters) <= _PARAMETERS
    return own and all(is_known(type(m)) and not m._parameters for m in module.children())


@functools.cache
def _of_fakes() -> frozenset[str]:
    with FakeTensorMode():
        return frozenset(vars(torch.empty(())))


def _is_users_name(name: str) -> bool:
    """Whether an attribute of a fake tensor is none of its own."""
    return name not in _of_fakes() and name not in _MARKS and "memo" not in name and not hasattr(FakeTensor, name)


def _getitem(container: Any, key: Any) -> Any:
    return container[key]


def _contents(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


def _plain(value: Any) -> bool:
    return all(isinstance(v, SCALARS) or isinstance(v, (tuple, list, dict)) and _plain(v) for v in _contents(value))


def _fixed_sizes(x: Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in x.shape)


def is_computed(owner: Any, name: str) -> bool:
    """Whether an attribute is computed by a property, or another descriptor of the user's, at each read."""
    found = next((vars(c)[name] for c in type(owner).__mro__ if name in vars(c)), None)
    return (
        hasattr(type(found), "__get__")
        and not isinstance(found, (*CODE, classmethod, staticmethod))
        and (type(found) is not types.MemberDescriptorType)
    )


def _has(module: nn.Module, name: str) -> bool:
    """Whether a module itself, and not its class, has the attribute."""
    inside = object.__getattribute__(module, "__dict__")
    return name in inside or any(name in inside[table] for table in ("_parameters", "_buffers", "_modules"))


def holds(owner: Any, name: str, value: Any) -> bool:
    """Whether the object itself, and not its class, has the attribute."""
    inside = object.__getattribute__(owner, "__dict__") if hasattr(owner, "__dict__") else {}
    return inside.get(name, _NOTHING) is value or name in slots(owner)
