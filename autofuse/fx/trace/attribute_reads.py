"""The part of a recorder that handles reads of attributes of the twin.

A plain value becomes a guard, and a tensor becomes a read of the attribute in the graph. A write to an attribute, or to
a list or a dict that an attribute holds, ends the trace, because a graph would not repeat it.
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
from autofuse.fx.trace.assigned_names import guard_assigned_names, reads_assigned_names
from autofuse.fx.trace.child_reads import ChildReads
from autofuse.fx.trace.child_writes import ChildWrites
from autofuse.fx.trace.class_questions import class_guard, is_guarded, is_torch_class
from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.decimal_context import guard_decimal_context
from autofuse.fx.trace.dict_reads import iterates_over_dict
from autofuse.fx.trace.external_state import ExternalState
from autofuse.fx.trace.foreign_calls import ForeignCalls
from autofuse.fx.trace.functions_found import FunctionsFound
from autofuse.fx.trace.open_integers import OpenInteger, OpenIntegers
from autofuse.fx.trace.read_set import ReadSet
from autofuse.fx.trace.roots import NOTHING, root_of
from autofuse.fx.trace.slots import slots
from autofuse.fx.trace.snapshots import OutsideChange
from autofuse.fx.trace.source_lines import SourceLine, user_place
from autofuse.fx.trace.twin import CODE, CONTAINERS, SCALARS, is_twin, note_integers, original_class, plain_class
from autofuse.fx.trace.user_code import Execution
from autofuse.fx.trace.value_facts import is_plain
from autofuse.fx.trace.values import HeldTensor, Untraceable, tensors
from autofuse.ir.vocabulary import MODULES
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because
from autofuse.torch_private import FakeTensor, FakeTensorMode

_MISSING = object()
_MAX_PARAMETERS = 2  # a weight and a bias
# Attributes that torch itself sets on tensors.
_TORCH_MARKS = frozenset({"_is_param", "_is_buffer", "_dynamo_dynamic_indices", "_dynamo_static_input_type"})
_CATCHING_CLASSES = frozenset({"AttributeError", "Exception"})
_MAX_ARRAY_BYTES = 4096  # bytes; a guard compares them at each call
_BUFFER_MARK = "persistent"  # nn.Buffer sets it on a tensor


class AttributeReads(ForeignCalls):
    """The part of a Recorder that handles reads of attributes.

    Attributes:
        outside: what the traced code can change outside of its module.
    """

    outside: ExternalState

    def begin_watching(self) -> None:
        """Set up the tables of one trace."""
        self.owners: dict[int, str] = {}  # id of a twin -> its guard text
        self.paths: dict[int, str] = {}  # id of a twin module -> its name below the root
        self.entered_children: set[str] = set()  # names of the children that the trace entered
        self.child_reads = ChildReads()
        self.child_writes = ChildWrites(self.root.modules)
        self.module_arguments: dict[int, fx.Node] = {}  # id of the twin of a module argument -> its placeholder
        self._snapshots: list[tuple[str, Any, list[Any], SourceLine | None]] = []
        self._tables: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        self._members: list[tuple[nn.Module, dict[str, Any]]] = []  # modules, with their parameters and children
        self._keep: list[Any] = []
        for name, module in self.root.named_modules():
            self._tables.append((module, dict(module._buffers)))
            self._members.append((module, {**module._parameters, **module._modules}))
            self.owners[id(module)], self.paths[id(module)] = guard_path(name), name
        self._real_reads: list[tuple[str, Any, str]] = []  # guard text, value, name
        self._first_names: dict[int, str] = {}  # id of a parameter or buffer -> its first name
        self._first_texts: dict[int, str] = {}  # id of another tensor -> the guard text of its first path
        self._other_paths: list[tuple[Tensor, str]] = []  # tensors, with guard texts of paths that lead to them
        self.argument_classes: list[type] = []  # classes that are arguments
        self.operators: set[str] = set()  # operators of tensors that forward called
        self._tensors_read: dict[str, type] = {}  # guard text of a module's tensor that was read -> its class
        self._names_read: dict[type, set[str]] = {}  # class of a module -> names of its tensors that were read
        self._computed: dict[tuple[type, str], None] = {}  # classes and names of the descriptors that were read
        self._machinery: dict[type, set[str]] = {}  # class of a module -> names of nn.Module's methods that were read
        self._children_asked: list[nn.Module] = []  # children of which code asks more than a call
        self.result_types_depend_on_children = False  # whether a child returns more than a tensor
        self.reads_of_child: list[tuple[Any, str, Any]] | None = None  # owner, name and value of a child's own reads
        self.open = OpenIntegers()

    def finish_watching(self) -> None:
        """Check what forward left behind.

        Raises:
            Untraceable: forward changed a container that outlives the call, registered a buffer, or set an attribute of
                a
                tensor.
        """
        self._guard_other_paths()
        for text, container, before, place in self._snapshots:
            after = _contents(container)
            if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
                raise Untraceable(because(forwards.CHANGES, target=text), place, passing=True)
        for module, buffers in self._tables:
            for name, x in module._buffers.items():
                if x is not buffers.get(name) and self.alias_sources.get(id(x), _MISSING) is not buffers.get(name):
                    self.refuse(because(forwards.REGISTERS_BUFFER, name=name), passing=True)
        for module, members in self._members:
            now = {**module._parameters, **module._modules}
            for name in [n for n in {**members, **now} if n not in now or n not in members]:
                self.refuse(because(forwards.ASSIGNS, target=f"self.{name}"))
            for name in [n for n, child in module._modules.items() if child is not members[n]]:
                self.refuse(because(forwards.ASSIGNS, target=f"self.{name}"))
        for record in self.held.values():
            if names := sorted(n for n in vars(record.tensor) if _is_user_attribute(n) and n != _BUFFER_MARK):
                self.refuse(because(forwards.ASSIGNS, target=f"{names[0]} of a tensor"))
        self._refuse_new_attributes()
        if self.refused is not None:
            raise self.refused

    def owners_read(self) -> list[Any]:
        """The module, the children that the trace entered, and the objects that they hold and that were read."""
        within = {"", *self.entered_children}
        modules = [m for name, m in self.root.named_modules() if name in within]
        return [*modules, *(o for o in self.world.objects() if id(o) in self.owners)]

    def _refuse_new_attributes(self) -> None:
        """Refuse attributes that forward set without `setattr`: cached properties, and writes to a `__dict__`.

        The original sets them at the next call, so the refusal is temporary.
        """
        for owner in self.owners_read():
            for name, value, expected in self.world.changed_attributes(owner):
                if isinstance(value, Tensor) and self.alias_sources.get(id(value), _MISSING) is expected:
                    continue
                target = f"{'self' if owner is self.root else original_class(type(owner)).__name__}.{name}"
                self.refuse(because(forwards.ASSIGNS, target=target), passing=True)

    def probed_attributes(self) -> frozenset[str]:
        """Names that forward may look up on tensors and that tensors do not have: `getattr(x, "scale", 0.25)`."""
        facts = [facts_of(r.code) for r in self.outside.ran if not r.paused]
        texts = (n for f in facts if f.by_name for n in f.texts)
        in_try = (
            n for f in facts if any(load.name in _CATCHING_CLASSES for load in f.loads) for n in f.attribute_names(None)
        )
        return frozenset(n for n in (*texts, *in_try) if not hasattr(Tensor, n))

    def guard_absent_attributes(self) -> None:
        """Guard that the module's tensors do not get an attribute that forward looks up: `weight.lr_scale`."""
        if names := self.probed_attributes():
            for text in self._tensors_read:
                self.guards.add(f"{self.guards.name_of(names)}.isdisjoint({text}.__dict__)")

    def class_guard(self) -> str:
        """The guard on the class of a tensor; "" if forward does not query the class of any value."""
        values = [value for _, value, _ in self._real_reads]
        return class_guard((r for r in self.outside.ran if not r.paused), values)

    def guard_classes(self) -> None:
        """Guard the classes of the module's tensors if forward may query them: `isinstance(self.weight, Quantized)`."""
        test = self.class_guard()
        for text, cls in self._tensors_read.items() if test else ():
            self.refuse_other_class(cls)
            if is_guarded(cls):
                self.guards.add(test.format(text, self.guards.constant(cls)))

    def refuse_other_class(self, cls: type) -> None:
        """Refuse a tensor of a user's subclass if forward queries classes: its stand-in would be a plain tensor."""
        if issubclass(cls, Tensor) and not is_torch_class(cls):
            self.refuse(because(forwards.ASKS_TENSOR_CLASS, kind=cls.__qualname__))

    def belongs_to_module(self, container: Any) -> bool:
        """Whether a container belongs to the module or to a global, and so outlives the call."""
        return self.lies_outside(container) or any(known is container for _, known, *_ in self._snapshots)

    def stop(self, why: Reason, _: bool) -> None:
        """Refuse: the user's code is about to call something that has a side effect."""
        self.refuse(why)

    def check_outside_changes(self, changes: Iterable[OutsideChange]) -> None:
        """Check what forward changed outside of the module.

        Args:
            changes: what differs from before the trace.

        Raises:
            Untraceable: forward changed something. If it only filled a cache with constants, the refusal is temporary:
                the
                original forward fills the cache at the next call.
        """
        repeated = {*self.tracked, *self.reached_by_objects()}
        for change in changes:
            if id(change.owner) in repeated:
                continue  # part of an argument: the graph repeats the write
            if effects.random_state(change.owner) is not None:
                self.refuse(because(forwards.DRAWS_RANDOM))
            cached = [t for value in change.added for t in tensors(value)]
            fills = change.may_be_cache and bool(cached) and all(map(self.is_constant, cached))
            self.refuse(because(forwards.KEEPS_OUTSIDE, name=change.name), passing=fills)

    def close(self, outside: ExternalState) -> None:
        """Guard what forward read apart from its arguments and its module.

        Raises:
            Untraceable: a guard is impossible.
        """
        self._guard_child_classes(outside)
        self.guard_absent_attributes()
        self.guard_classes()
        reads = ReadSet(self.guards, FunctionsFound(self.world.functions), self.refuse)
        for text, value, name in self._real_reads:
            reads.guard_value(text, value, name)
        for cls, names in self._names_read.items():
            reads.guard_unshadowed(cls, names)
        reads.descriptors = list(self._computed)
        reads.guard_special_methods(original_class(type(self.root)), runs=True)
        for cls in dict.fromkeys(original_class(type(o)) for o in (*self.owners_read(), *self._children_asked)):
            reads.guard_special_methods(cls)
        for cls, names in self._machinery.items():
            reads.guard_machinery(cls, names)
        if probed := self.probed_attributes():
            reads.guard_lacking(nn.Parameter, probed)
        ran = [r for r in outside.ran if not r.paused]
        if self.result_types_depend_on_children:
            reads.guard_constants([r for r in outside.ran if r.paused])
        module_classes = [original_class(type(m)) for m in self.world.twins() if id(m) in self.owners]
        reads.close(ran, module_classes, self.argument_classes, self.operators)
        self._guard_unnamed_reads(reads, ran)
        self._refuse_written_outside(reads, ran)
        for ask in outside.queries:
            ask(reads)

    def _guard_unnamed_reads(self, reads: ReadSet, ran: list[Execution]) -> None:
        """Guard what no name in the code shows: the context of `decimal`, and the names of classes and functions."""
        compared = list(reads.compared_objects())
        guard_decimal_context(self.guards, compared)
        if any(reads_assigned_names(each, self.guards, compared) for each in ran):
            of_modules = {original_class(type(m)) for m in self.world.twins() if isinstance(m, nn.Module)}
            guard_assigned_names(self.guards, (*compared, *of_modules, *reads.functions.all_known()))

    def _guard_child_classes(self, outside: ExternalState) -> None:
        """Guard the class of each child whose class forward may have queried. The child may also be absent."""
        called = {str(n.target) for n in self.graph.nodes if n.op == "call_module"} | self.entered_children
        known = [m for path, m in self.root.named_modules() if path in called]
        for child in self.child_reads.with_class_guard([r for r in outside.ran if not r.paused], known):
            path = self.paths.get(id(child))
            self._children_asked.append(child)
            if path:
                cls = self.guards.constant(plain_class(original_class(type(child))))
                self.guards.add(f"_of_class({guard_path(path)}, {cls})")

    # Attributes.

    def on_read(self, owner: Any, name: str, value: Any) -> Any:
        """`owner.name` was read and is `value`.

        Returns:
            What forward sees.
        """
        if type(value) is OpenInteger:
            return self._on_open_read(owner, name, value)
        if type(value) is int and (not self.paused or self.reads_of_child is None):
            note_integers([(id(owner), name)])
        value = self._twin_of_object(owner, name, value)
        if isinstance(value, types.FunctionType) and self.outside is not None:
            self.outside.note(value, name, ())  # its variables
        if effects.prints_unseen(value):
            self.stop(because(forwards.READS_STATE, name=name, kind=effects.kind_of_state(value)), True)
        if self.paused:
            stands_in = type(value).__module__.startswith("autofuse.")  # for an argument that forward may not use
            kind = "" if stands_in else effects.kind_of_state(value)
            if kind and effects.changes_when_read(value):  # a child is about to advance an iterator
                self.stop(because(forwards.READS_STATE, name=name, kind=kind), True)
            if self.reads_of_child is not None:
                self.reads_of_child.append((owner, name, value))
            return value
        with self.pause_recording():
            self._guard_read(owner, name, value)
        return value

    def _on_open_read(self, owner: Any, name: str, value: OpenInteger) -> Any:
        """Forward reads an open integer of its module. What a child or a method sees of it is the number."""
        if self.paused or owner is not self.root:
            return value.used()
        with self.pause_recording():
            self._refuse_written(owner, name, value.example)
            self.guards.same(f"type({self.owners[id(owner)]}.{name})", int)
        self.open.read.add(name)
        return value

    def _refuse_written(self, owner: Any, name: str, value: Any) -> None:
        """Refuse a value that a child wrote in this call, or may write in another one."""
        if isinstance(value, (Tensor, nn.Module, *CODE)) or is_computed(owner, name):
            return
        written = self.child_writes.has_written(owner, name, owner is self.root) or self.child_writes.has_altered(value)
        before = self.world.attributes_of_original(owner)
        if written or before is not None and name in before and not self.world.holds_same(value, before[name]):
            self.refuse(because(forwards.READS_WRITTEN, name=name))

    def on_unrecorded_store(self, owner: Any, name: str, value: Any) -> None:
        """A child stores an attribute. What is read of it later in this call cannot be guarded."""
        self.child_writes.stored(owner, name)

    def _refuse_written_outside(self, reads: ReadSet, ran: list[Execution]) -> None:
        """Refuse what a child may write outside of the modules and the forward itself reads."""
        loads = [(each, load) for each in ran for load in each.loads()]
        roots = {id(value): load for each, load in loads if (value := root_of(each, load)) is not NOTHING}
        names = {name for each in ran for name in facts_of(each.code).attribute_names(each.lines)}
        for (key, name), value in self.child_writes.attributes.items():
            if name in names and (key in reads.seen or key in roots) and not is_twin(value):
                self.refuse(because(forwards.READS_WRITTEN, name=name))
        for value in self.child_writes.altered():
            if id(value) in reads.seen:
                self.refuse(because(forwards.READS_WRITTEN, name=type(value).__name__))
        for each, load in loads:
            if load.kind == "global" and (id(each.namespace), load.name) in self.child_writes.globals:
                self.refuse(because(forwards.READS_WRITTEN, name=load.name))

    def _guard_read(self, owner: Any, name: str, value: Any) -> None:
        self._refuse_written(owner, name, value)
        text = self.owners.get(id(owner))
        if isinstance(value, nn.Module) and id(value) in self.paths:
            self.child_reads.read(value)
        elif isinstance(owner, nn.Module) and owner is not self.root and not _has_own_entry(owner, name):
            self.child_reads.read_of_class(owner)
        if is_computed(owner, name):
            self._computed[original_class(type(owner)), name] = None
        if isinstance(value, SCALARS):
            self._guard_scalar(owner, text, name, value)
        elif isinstance(value, Tensor):
            self._register_tensor(value, owner, name)
        elif isinstance(value, CODE):
            self._guard_code(owner, text, name, value)
        elif isinstance(value, nn.Module) or is_computed(owner, name):
            self._guard_other_name(owner, name, self.paths.get(id(value)))  # the reads inside a property are guarded
        elif text is None:
            self.refuse(because(forwards.READS_UNREACHED, name=name, kind=type(owner).__name__))
        else:
            self._guard_value(owner, f"{text}.{name}", name, value)

    def _guard_other_name(self, owner: Any, name: str, first: str | None) -> None:
        """Guard that another name of a value still refers to it: the graph reads the value by its first name."""
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

    def _guard_other_names(self, owner: nn.Module, table: dict[str, Any]) -> None:
        """Guard the entries of a table that the graph reads by another name: `ModuleDict({"a": self.a})`."""
        for name, value in table.items():
            if isinstance(value, nn.Module):
                self._guard_other_name(owner, name, self.paths.get(id(value)))
            elif isinstance(value, Tensor) and self.parameter(value) is not None:
                self._guard_other_name(owner, name, self._first_names.get(id(value)))

    def _guard_value(self, owner: Any, text: str, name: str, value: Any) -> None:
        """Guard an attribute that is an object, a container or an array."""
        if is_plain(value):
            self.guards.alike(text, value)
        elif kind := effects.kind_of_state(value):
            self.refuse(because(forwards.READS_STATE, name=name, kind=kind))
        elif not has_own_attribute(owner, name, value):  # the class holds it, so it has no twin
            self._real_reads.append((text, value, name))
            self.outside.note(value, text)
        elif isinstance(value, CONTAINERS):
            self._register_container(value, text, owner, name)
        else:
            self._guard_object(text, name, value)

    def _guard_object(self, text: str, name: str, value: Any) -> None:
        if effects.is_array(value):
            if value.nbytes > _MAX_ARRAY_BYTES or value.dtype.hasobject:
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

    def on_read_dict(self, owner: Any, table: dict[str, Any], code: types.CodeType) -> None:
        """`self.__dict__` or `vars(self)` was read. Guard each name that is a string constant of that code.

        Raises:
            Untraceable: the code iterates over the dict, or contains no name of an attribute.
        """
        names = [n for n in facts_of(code).texts if n in table]
        if not names or iterates_over_dict(code):
            self.refuse(because(forwards.READS_DICT, name="__dict__"))
        for name in names:
            self.on_read(owner, name, table[name])
        text = self.owners.get(id(owner))
        for name in sorted(n for n in facts_of(code).texts if n not in table and n.isidentifier()):
            if text is None:
                self.refuse(because(forwards.READS_DICT, name="__dict__"))
            self.guards.add(f"{name!r} not in {text}.__dict__")

    def on_read_table(self, owner: nn.Module, name: str) -> None:
        """A loop iterates over the children, the parameters or the hooks of a module, or counts them."""
        text, table = self.owners.get(id(owner)), vars(self.world.originals[id(owner)])[name]
        if text is None:
            self.refuse(because(forwards.READS_OTHER_MODULE, name=name))
        if "hook" not in name:
            self._children_asked.append(owner)
            self.guards.add(keys_guard(f"{text}.{name}", table, isinstance(owner, nn.ModuleList)))
            self.child_reads.read_table(m for m in vars(owner)[name].values() if isinstance(m, nn.Module))
            self._guard_other_names(owner, vars(owner)[name])
        elif table:
            self.refuse(because(forwards.READS_STATE, name=name, kind="hook"))
        else:
            self.guards.add(f"not {text}.{name}")

    def guard_child_flags(self, heard: Iterable[tuple[Any, str, Any]]) -> None:
        """Guard the flags that a child read of itself: they may decide whether it returns a tuple, or None in it."""
        for owner, name, value in heard:
            text = self.owners.get(id(owner))
            if text is None or is_computed(owner, name):
                continue
            if isinstance(value, SCALARS) and not isinstance(value, float):
                from_torch = original_class(type(owner)).__module__.startswith("torch.nn.")
                None if from_torch else self._guard_scalar(owner, text, name, value)
            elif is_twin(value) and not isinstance(value, nn.Module):
                self.owners.setdefault(id(value), f"{text}.{name}")
                self._keep.append(value)

    def on_missing(self, owner: Any, name: str) -> None:
        """A lookup of `owner.name` failed: guard that the attribute stays absent."""
        text = self.owners.get(id(owner))
        if text is not None:
            self.guards.add(f"_lacks({text}, {name!r})")

    def on_machinery(self, owner: Any, name: str) -> None:
        """A method of nn.Module was read, such as `children`."""
        self._machinery.setdefault(original_class(type(owner)), set()).add(name)

    def on_store(self, owner: Any, name: str, value: Any) -> None:
        """Refuse an assignment, unless it stores what is there already: `self.mask = self.mask.to(x.device)`."""
        if self._is_unchanged(owner, name, value):
            return
        target = f"{'self' if owner is self.root else type(owner).__name__}.{name}"
        self.refuse(because(forwards.ASSIGNS, target=target), passing=True)

    def _is_unchanged(self, owner: Any, name: str, value: Any) -> bool:
        table = object.__getattribute__(owner, "__dict__")
        tables = [table, *(table.get(t) or {} for t in ("_buffers", "_parameters"))]
        current = next((t[name] for t in tables if name in t), _MISSING)
        if isinstance(value, Tensor):
            return current is not _MISSING and (value is current or self.alias_sources.get(id(value)) is current)
        text = self.owners.get(id(owner))
        if text is None or not isinstance(value, SCALARS) or type(value) is not type(current) or value != current:
            return False
        self._guard_scalar(owner, text, name, value)
        return True

    def _twin_of_object(self, owner: Any, name: str, value: Any) -> Any:
        """The copy of an object that is neither a tensor nor a module. It is made at the first read."""
        table = object.__getattribute__(owner, "__dict__")
        if table.get(name) is not value or isinstance(value, (*SCALARS, *CONTAINERS, *CODE, Tensor, nn.Module)):
            return value
        if effects.kind_of_state(value):
            return value
        with self.pause_recording():
            twin = self.world.of(value)
        table[name] = twin
        return twin

    def _guard_scalar(self, owner: Any, text: str | None, name: str, value: Any) -> None:
        if text is None:
            if isinstance(owner, nn.Module):
                self.refuse(because(forwards.READS_OTHER_MODULE, name=name))
            self.refuse(because(forwards.READS_UNREACHED, name=name, kind=type(owner).__name__))
        if is_computed(owner, name):
            return  # the reads inside the property are guarded
        if isinstance(owner, nn.Module) and value is None:
            for table in ("_parameters", "_buffers", "_modules"):
                if name in owner.__dict__[table]:
                    self.guards.add(f'{text}.{table}["{name}"] is None')
                    return
        if effects.belongs_to_user(type(value)) and not isinstance(value, enum.Enum):  # a number with methods
            self._real_reads.append((f"{text}.{name}", value, name))
        self.guards.equal(f"{text}.{name}", value)

    def _guard_code(self, owner: Any, text: str | None, name: str, value: Any) -> None:
        """Guard a function that an instance holds, such as its activation. It may be replaced later."""
        if text is None:
            return
        if name in object.__getattribute__(owner, "__dict__"):
            self._guard_function(f"{text}.{name}", value)
            return
        self.guards.add(f'"{name}" not in {text}.__dict__')  # read_set.py guards the function of the class
        if not isinstance(value, types.MethodType) and not is_computed(owner, name):
            self._real_reads.append((f"{text}.{name}", value, name))

    def _guard_function(self, text: str, value: Any) -> None:
        if not isinstance(value, (types.MethodType, functools.partial)):
            users = self.world.functions.get(id(value), value)
            self._real_reads.append((text, users, text.rpartition(".")[2]))
            self._guard_closure(text, value)
            return
        self.guards.same(f"type({text})", type(value))  # a copy of a module has its own method object
        if isinstance(value, types.MethodType):
            self.guards.same(f"{text}.__func__", value.__func__)
            if is_twin(value.__self__):
                self.owners.setdefault(id(value.__self__), f"{text}.__self__")
            else:
                self._real_reads.append((f"{text}.__self__", value.__self__, text.rpartition(".")[2]))
            return
        self._guard_function(f"{text}.func", value.func)
        for index, argument in enumerate(value.args):
            self._guard_part(f"{text}.args[{index}]", argument)
        for key, argument in value.keywords.items():
            self._guard_part(f"{text}.keywords[{key!r}]", argument)
        self.guards.add(f"len({text}.args) == {len(value.args)}")
        self.guards.add(f"len({text}.keywords) == {len(value.keywords)}")

    def _guard_closure(self, text: str, value: Any) -> None:
        """Guard the modules in a closure: a copy of a module holds the same function, with the original's children."""
        if id(value) not in self.world.functions:
            return
        for index, cell in enumerate(value.__closure__):
            inside = f"{text}.__closure__[{index}].cell_contents"
            if isinstance(cell.cell_contents, nn.Module) and id(cell.cell_contents) in self.paths:
                self.guards.add(f"{inside} is {guard_path(self.paths[id(cell.cell_contents)])}")
            elif isinstance(cell.cell_contents, Tensor):
                self._other_paths.append((cell.cell_contents, inside))

    def _register_tensor(self, x: Tensor, owner: Any, name: str) -> None:
        """A tensor that is a plain attribute. `parameter` handles parameters and buffers."""
        if id(x) in self.held or self.parameter(x) is not None:
            if id(owner) in self.paths:
                path = f"{self.paths[id(owner)]}.{name}".lstrip(".")
                self._tensors_read[guard_tensor(self.root, path)] = self._class_of(owner, name)
                self._names_read.setdefault(original_class(type(owner)), set()).add(name)
            first = self._first_names.get(id(x))
            self._guard_other_name(owner, name, first)
            if id(owner) in self.owners and (first is None or id(owner) not in self.paths):
                self._other_paths.append((x, f"{self.owners[id(owner)]}.{name}"))
            return
        if isinstance(owner, nn.Module) and id(owner) in self.paths:
            target = f"{self.paths[id(owner)]}.{name}".lstrip(".")
            self.hold(x, lambda: self.graph.get_attr(target), _fixed_sizes(x))
            text = f"{self.owners[id(owner)]}.{name}"
            self._first_texts[id(x)] = text
            self.guards.add(f"isinstance({text}, _Tensor)")
            self._tensors_read[text] = self._class_of(owner, name)

    def _class_of(self, owner: nn.Module, name: str) -> type:
        """The class of the user's tensor whose stand-in was read."""
        table = vars(self.world.originals[id(owner)])
        tables = (table["_parameters"], table["_buffers"], table)
        return type(next((t[name] for t in tables if name in t), None))

    def _register_container(self, value: Any, text: str, owner: Any, name: str) -> None:
        if any(container is value for _, container, *_ in self._snapshots):
            return
        self._snapshots.append((text, value, _contents(value), user_place()))
        self.outside.snapshot.note(value, text)
        if _holds_only_scalars(value):
            self.guards.equal(text, type(value)(value))
            return
        make = None
        if isinstance(owner, nn.Module) and id(owner) in self.paths:
            target = f"{self.paths[id(owner)]}.{name}".lstrip(".")
            make = lambda: self.graph.create_node("get_attr", target)
        self._register_items(value, make, text)

    def _register_items(self, value: Any, make: Callable[[], fx.Node] | None, text: str) -> None:
        """Guard the keys and the values of a container: another call may fill or empty a cache."""
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
                self._register_item(item, get, f"{text}[{self.guards.name_of(key)}]")
            elif isinstance(item, CONTAINERS) and not is_plain(item):
                self._register_items(item, get, f"{text}[{key!r}]")
            else:
                self._guard_part(f"{text}[{self.guards.name_of(key)}]", item)

    def _register_item(self, item: Tensor, get: Callable[[], fx.Node] | None, text: str) -> None:
        """A tensor in a container. If the graph reads it elsewhere already, it must stay the same tensor."""
        if id(item) in self.held or self.parameter(item) is not None:
            self._other_paths.append((item, text))
        elif get is not None:
            self.hold(item, get, _fixed_sizes(item))
            self._first_texts[id(item)] = text

    def _guard_other_paths(self) -> None:
        """Guard that each other path to a tensor still leads to it: the graph reads the tensor by its first path."""
        for x, text in self._other_paths:
            self.parameter(x)  # finds its name
            name = self._first_names.get(id(x))
            first = self._first_texts.get(id(x), "") if name is None else guard_tensor(self.root, name)
            if first not in ("", text):
                self.guards.add(f"{text} is {first}")

    def _guard_part(self, text: str, item: Any) -> None:
        """Guard an item of a container, or an argument of a partial function."""
        if isinstance(item, nn.Module):
            if id(item) in self.paths:
                self.guards.add(f"{text} is {guard_path(self.paths[id(item)])}")
        elif isinstance(item, Tensor):
            self._other_paths.append((item, text))
        elif isinstance(item, SCALARS):
            self.guards.equal(text, item)
        elif is_plain(item):
            self.guards.alike(text, item)
        elif isinstance(item, CODE):
            self._guard_function(text, item)
        elif kind := effects.kind_of_state(item):
            self.refuse(because(forwards.READS_STATE, name=text, kind=kind))
        elif not isinstance(item, (Tensor, *CONTAINERS)):
            self._guard_object(text, text, item)

    def _getter(self, make: Callable[[], fx.Node], key: Any) -> Callable[[], fx.Node]:
        return lambda: self.graph.call_function(_getitem, (make(), key))

    def parameter(self, x: Tensor) -> HeldTensor | None:
        """The record of a parameter or a buffer below the root; None if `x` is neither."""
        with self.pause_recording():
            named_tensors = (
                *self.root.named_parameters(remove_duplicate=False),
                *self.root.named_buffers(remove_duplicate=False),
            )
        for name, p in named_tensors:
            self._first_names.setdefault(id(p), name)
            if id(p) not in self.held:
                self.hold(p, self._attribute_maker(name), _fixed_sizes(p))
        return self.held.get(id(x))

    def _attribute_maker(self, name: str) -> Callable[[], fx.Node]:
        return lambda: self.graph.create_node("get_attr", name)


def guard_path(name: str) -> str:
    """The guard text of the module `name` below self. It avoids nn.Module.__getattr__, which is slow."""
    return "self" + "".join(f'._modules["{part}"]' for part in name.split(".") if part)


def guard_inside(name: str, attribute: str) -> str:
    """The guard text of an entry in the `__dict__` of the module `name` below self."""
    return f'{guard_path(name)}.__dict__["{attribute}"]'


def guard_tensor(root: nn.Module, name: str) -> str:
    """The guard text of the parameter, buffer or attribute `name` below `root`."""
    path, _, attribute = name.rpartition(".")
    owner, reach = root.get_submodule(path), guard_path(path)
    if attribute in vars(owner)["_parameters"]:
        return f'_held({reach}, "_parameters", "{attribute}")'
    return f'{reach}._buffers["{attribute}"]' if attribute in vars(owner)["_buffers"] else f"{reach}.{attribute}"


def keys_guard(text: str, table: dict[str, Any], numbered: bool) -> str:
    """A test that a table of children or parameters has the same names as now.

    Args:
        text: the guard text of the table.
        table: the table.
        numbered: whether the names are the numbers from 0, so that the length is enough.
    """
    if not table:
        return f"not {text}"
    return f"len({text}) == {len(table)}" if numbered else f"tuple({text}) == {tuple(table)!r}"


def is_known(kind: type) -> bool:
    """Whether modules of exactly this class are one operation of the vocabulary."""
    from_torch = kind.__module__.startswith("torch.nn.modules.") and f"torch.nn.{kind.__name__}" in MODULES
    # A forward that was replaced by assignment has the module of the user's function.
    return from_torch and getattr(getattr(kind, "forward", None), "__module__", "") == kind.__module__


def is_light(module: nn.Module) -> bool:
    """Whether a module is a layer of the vocabulary, or has few parameters and only such layers, without parameters."""
    if is_known(type(module)):
        return True
    own = not type(module).__module__.startswith("torch.") and len(module._parameters) <= _MAX_PARAMETERS
    return own and all(is_known(type(m)) and not m._parameters for m in module.children())


@functools.cache
def _fake_attributes() -> frozenset[str]:
    with FakeTensorMode():
        return frozenset(vars(torch.empty(())))


def _is_user_attribute(name: str) -> bool:
    """Whether the user set this attribute of a fake tensor."""
    return (
        name not in _fake_attributes()
        and name not in _TORCH_MARKS
        and "memo" not in name
        and not hasattr(FakeTensor, name)
    )


def _getitem(container: Any, key: Any) -> Any:
    return container[key]


def _contents(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


def _holds_only_scalars(value: Any) -> bool:
    return all(
        isinstance(v, SCALARS) or isinstance(v, (tuple, list, dict)) and _holds_only_scalars(v)
        for v in _contents(value)
    )


def _fixed_sizes(x: Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in x.shape)


def is_computed(owner: Any, name: str) -> bool:
    """Whether a property, or another descriptor of the user's, computes an attribute at each read.

    The value that functools.cached_property left in the object is not computed again.
    """
    found = next((vars(c)[name] for c in type(owner).__mro__ if name in vars(c)), None)
    if not hasattr(type(found), "__set__") and name in object.__getattribute__(owner, "__dict__"):
        return False
    return (
        hasattr(type(found), "__get__")
        and not isinstance(found, (*CODE, classmethod, staticmethod))
        and (type(found) is not types.MemberDescriptorType)
    )


def _has_own_entry(module: nn.Module, name: str) -> bool:
    """Whether the module itself, not its class, has the attribute."""
    entries = object.__getattribute__(module, "__dict__")
    return name in entries or any(name in entries[table] for table in ("_parameters", "_buffers", "_modules"))


def has_own_attribute(owner: Any, name: str, value: Any) -> bool:
    """Whether the object itself, not its class, has the attribute."""
    table = object.__getattribute__(owner, "__dict__") if hasattr(owner, "__dict__") else {}
    return table.get(name, _MISSING) is value or name in slots(owner)
