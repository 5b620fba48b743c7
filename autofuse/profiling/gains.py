"""What fusing each place would save, predicted before anything is fused, from the operators that go and those that come.

    seconds           = measured seconds of the layers that the place is in x its operators' modelled share of them
    predicted_seconds = modelled seconds of the fused operation x measured / modelled seconds of all those layers
    predicted_gain    = step / (step - (seconds - predicted_seconds)), by Amdahl for this place alone

The second factor says how the machine did meanwhile against its roofs: it holds for the step as a whole, so that what
a place does better or worse than others stays in it. Knows sites, costs and layers' times; must not know how these were
measured, nor what becomes of a place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from autofuse.fx.calls import set_mode
from autofuse.fx.excerpt import Excerpt
from autofuse.fx.planner import copy_of_call
from autofuse.fx.sharding import stand_in
from autofuse.fx.trace import quiet
from autofuse.fx.twin import World
from autofuse.kernels.operation import recorded
from autofuse.profiling.costs import Costs
from autofuse.profiling.listing import Operator, fresh, listed
from autofuse.profiling.places import Reading, Site
from autofuse.profiling.work import Phase
from autofuse.report.comparison import milliseconds
from autofuse.report.profile import Layer, Place, Work

LEAST = 0.1  # of a place's own seconds: a smaller saving cannot be told from the model's own error

Key = tuple[str, Phase]
Seconds = Mapping[Key, float]


@dataclass(frozen=True)
class Modelled:
    """One site on paper. Seconds by module, named from the site's own on, and phase.

    before: the place's operators as they stand; layers: all operators of the modules that they run in. after: the
    fused operation. forms: what distinguishes it from other sites.
    """

    before: Seconds
    layers: Seconds
    original: Work
    after: Work


@dataclass
class Predictor:
    """Models the sites of one reading. Equal sites of equal layers are modelled once."""

    reading: Reading
    costs: Costs
    training: bool
    _known: dict[Hashable, Modelled | str] = field(default_factory=dict)

    def modelled(self, site: Site) -> Modelled | str:
        """The site on paper, or why it cannot be had, as a sentence."""
        excerpt = site.found.excerpt if site.found is not None else None
        if excerpt is None or site.plan is None:
            return ""
        key = (excerpt.likeness, _form(site.plan.module), self.training)
        if key not in self._known:
            try:
                self._known[key] = self._made(site.plan.module, excerpt)
            except Exception as error:  # the layer is the user's, and fakes may not take what it does
                said = next(iter(str(error).splitlines()), "")
                self._known[key] = f"Its gain is not predicted: on paper it raised {type(error).__name__} ({said})."
        return self._known[key]

    def _made(self, module: nn.Module, excerpt: Excerpt) -> Modelled:
        planner = self.reading.planner
        assert planner is not None
        with quiet(), planner.mode:
            twin = self._twin(module)
            old, new = excerpt.functions(twin)
            before = self._operators(old, *_apart(old, excerpt.given))
            with recorded() as calls:
                after = self._operators(new, *_apart(new, excerpt.given))
            whole = self._operators(twin, *self._call(module, twin))
        one_by_one = all(
            call.operation.taker(call.args[0], *call.args[1:], **call.kwargs) is call.operation.torch for call in calls
        )
        return Modelled(
            _by_key(before, self.costs),
            _by_key(whole, self.costs),
            self.costs.of(before),
            self.costs.of(after) if one_by_one else self.costs.in_one_loop(after),
        )

    def _operators(self, root: nn.Module, run: Callable[[], Any], given: Sequence[Tensor]) -> list[Operator]:
        return listed(run, root, [*given, *root.parameters()], self.training)

    def _twin(self, module: nn.Module) -> nn.Module:
        """A twin that calls its children as the module does, of this site alone."""
        planner = self.reading.planner
        assert planner is not None
        world = World(lambda x: stand_in(x, planner.mode, planner.sharded), watched=False)
        twin: nn.Module = world.of(module)
        set_mode(twin, module.training)
        return twin

    def _call(self, module: nn.Module, twin: nn.Module) -> tuple[Callable[[], Any], list[Tensor]]:
        args, kwargs = World(fresh, watched=False, deep=True).of(copy_of_call(self.reading.calls[module]))
        return lambda: twin(*args, **kwargs), _tensors((args, kwargs))


def with_places(layers: Sequence[Layer], reading: Reading, costs: Costs, step_seconds: float) -> tuple[Layer, ...]:
    """The layers, each with the sites that were read in it, and what fusing them is predicted to save of a step."""
    training = any(layer.own_backward.seconds for layer in layers)
    predictor = Predictor(reading, costs, training)
    measured = {key: value for layer in layers for key, value in _own(layer)}
    papers = [(site, predictor.modelled(site)) for site in reading.sites]
    pace = _pace(papers, measured)
    places: dict[str, list[Place]] = {}
    known = {layer.fqn: layer for layer in layers}
    for site, paper in papers:
        name = _nearest(site.fqn, known)
        calls = known[name].calls if name in known else 1
        place = _place(site, paper, measured, pace, step_seconds)
        places.setdefault(name, []).append(replace(place, calls=calls))
    return tuple(replace(layer, places=tuple(places.get(layer.fqn, ()))) for layer in layers)


def _own(layer: Layer) -> Iterator[tuple[Key, float]]:
    yield (layer.fqn, "forward"), layer.own_forward.seconds
    yield (layer.fqn, "backward"), layer.own_backward.seconds


def _pace(papers: Iterable[tuple[Site, Modelled | str]], measured: Seconds) -> float:
    """Measured / modelled seconds of all layers that sites are in, each once."""
    modelled: dict[Key, float] = {}
    for site, paper in papers:
        if isinstance(paper, Modelled):
            for (name, phase), seconds in paper.layers.items():
                modelled.setdefault((_joined(site.fqn, name), phase), seconds)
    both = [(measured[key], seconds) for key, seconds in modelled.items() if measured.get(key)]
    total = sum(seconds for _, seconds in both)
    return sum(taken for taken, _ in both) / total if total else 1.0


def _place(site: Site, paper: Modelled | str, measured: Seconds, pace: float, step: float) -> Place:
    place = Place(site.rule, site.status, site.reason, site.operation, site.file, site.line, part_of=site.part_of)
    if isinstance(paper, str):
        return replace(place, reason=place.reason or paper)
    seconds = 0.0
    for (name, phase), before in paper.before.items():
        whole = paper.layers.get((name, phase), before)
        seconds += measured.get((_joined(site.fqn, name), phase), 0.0) * min(1.0, before / whole if whole else 0.0)
    if not seconds:
        return place
    predicted = paper.after.seconds * pace
    saving = seconds - predicted
    if abs(saving) < LEAST * seconds and place.status == "applies":
        place = replace(place, reason=f"nothing to gain: {milliseconds(abs(saving))} of {milliseconds(seconds)}")
    return replace(
        place, seconds=seconds, predicted_seconds=predicted, layers=_spanned(site, paper),
        saved_bytes=paper.original.bytes - paper.after.bytes, saved_flops=paper.original.flops - paper.after.flops,
        predicted_gain=amdahl(step, saving),
    )  # fmt: skip


def _spanned(site: Site, paper: Modelled) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_joined(site.fqn, name) for name, _ in paper.before))


def amdahl(step: float, saving: float) -> float | None:
    """The step's time before / after, where `saving` seconds of it go."""
    return step / (step - saving) if step > max(saving, 0.0) else None


def _joined(site: str, name: str) -> str:
    return ".".join(part for part in (site, name) if part)


def _nearest(name: str, known: Mapping[str, Layer]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _apart(function: fx.GraphModule, given: Sequence[Any]) -> tuple[Callable[[], Any], list[Tensor]]:
    """A graph on values of its own."""
    values = [pytree.tree_map(fresh, v) for v in given]
    return lambda: function(*values), _tensors(values)


def _by_key(operators: Iterable[Operator], costs: Costs) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for operator in operators:
        key = operator.module, operator.phase
        found[key] = found.get(key, 0.0) + costs.one(operator).seconds
    return found


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]


def _form(module: nn.Module) -> Hashable:
    """The classes and parameters of a module and those below it: excerpts with equal code may differ in these."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    kinds = tuple((name, type(child).__qualname__) for name, child in module.named_modules())
    return kinds, tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors)
