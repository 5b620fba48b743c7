"""Predicts what fusing each place would save, from the operators that it removes and those that it adds.

    seconds           = measured seconds of the place's layers x its operators' modelled share of them
    predicted_seconds = seconds x the modelled share of operators that stay + modelled seconds of added operators x pace
    predicted_gain    = step / (step - (seconds - predicted_seconds)), by Amdahl for this place alone

The pace is measured / modelled seconds: how the machine did in this step compared with its roofs. There is one for
matrix products and one for everything else, over all layers with places. So what one place does better or worse than
others stays in its own prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from autofuse.fx.rewrite.excerpt import Excerpt
from autofuse.fx.session.planner import copy_call
from autofuse.fx.trace.quiet_log import mute_fake_tensor_log
from autofuse.fx.trace.stand_ins import stand_in
from autofuse.fx.trace.twin import Twins, set_mode
from autofuse.kernels.operation import record_calls
from autofuse.profiling.live.listed_operators import ListedOperator, fresh, list_operators
from autofuse.profiling.live.module_calls import join_names
from autofuse.profiling.live.operator_costs import Costs, is_product
from autofuse.profiling.live.rule_places import PlannedPlace, Reading
from autofuse.profiling.trace.work import Phase
from autofuse.results.comparison import milliseconds
from autofuse.results.profile import Layer, Place, Work
from autofuse.torch_private import pytree

_MOSTLY = 0.9  # a layer with this fraction of one kind of work shows the pace of that kind
LEAST = 0.1  # fraction of a place's seconds: a smaller saving is within the model's error

Key = tuple[str, Phase]


class SplitSeconds(NamedTuple):
    """Seconds of matrix products, and of everything else."""

    products: float = 0.0
    others: float = 0.0

    def __add__(self, other: SplitSeconds) -> SplitSeconds:  # type: ignore[override]
        return SplitSeconds(self.products + other.products, self.others + other.others)

    @property
    def total(self) -> float:
        """Seconds of both."""
        return self.products + self.others


@dataclass(frozen=True)
class Modelled:
    """The modelled seconds of one site, by module (named relative to the site's) and phase.

    before: of the operators of the place, without fusion.
    layers: of all operators of the modules that contain them.
    original, fused: the whole place without fusion, and the fused operation.
    kept_seconds: of the operators of `before` that the fused operation runs, too.
    added_seconds: of the operators that only the fused operation runs.
    """

    before: Mapping[Key, SplitSeconds]
    layers: Mapping[Key, SplitSeconds]
    original: Work
    fused: Work
    kept_seconds: Mapping[Key, SplitSeconds]
    added_seconds: SplitSeconds


@dataclass
class Predictor:
    """Predicts the time of each site before and after fusion. Equal sites of equal layers are computed once."""

    reading: Reading
    costs: Costs
    training: bool
    _known: dict[Hashable, Modelled | str] = field(default_factory=dict)

    def modelled(self, site: PlannedPlace) -> Modelled | str:
        """Return the modelled site, or a sentence that says why there is none."""
        excerpt = site.found.excerpt if site.found is not None else None
        if excerpt is None or site.plan is None:
            return ""
        key = (excerpt.key, _structure(site.plan.module), self.training)
        if key not in self._known:
            try:
                self._known[key] = self._model(site.plan.module, excerpt)
            except Exception as error:  # the layer is the user's, and may not run on fake tensors
                said = next(iter(str(error).splitlines()), "")
                self._known[key] = f"Its gain is not predicted: the model of it raised {type(error).__name__} ({said})."
        return self._known[key]

    def _model(self, module: nn.Module, excerpt: Excerpt) -> Modelled:
        planner = self.reading.planner
        assert planner is not None
        with mute_fake_tensor_log(), planner.mode:
            twin = self._twin(module)
            old, new = excerpt.functions(twin)
            before = self._operators(old, *_copied_call(old, excerpt.example_inputs))
            with record_calls() as calls:
                after = self._operators(new, *_copied_call(new, excerpt.example_inputs))
            layer_operators = self._operators(twin, *self._call(module, twin))
        one_by_one = all(call.operation.taker(*call.args, **call.kwargs) is call.operation.torch for call in calls)
        fused = self.costs.of(after) if one_by_one else self.costs.in_one_loop(after)
        kept = _common_operators(before, after if one_by_one else [o for o in after if o.cost.flops])
        remaining = sum((_split_seconds(o, self.costs) for o in kept), SplitSeconds())
        products = sum(self.costs.one(o).seconds for o in after if is_product(o))
        added_seconds = SplitSeconds(products - remaining.products, fused.seconds - products - remaining.others)
        return Modelled(
            _costs_by_key(before, self.costs),
            _costs_by_key(layer_operators, self.costs),
            self.costs.of(before),
            fused,
            _costs_by_key(kept, self.costs),
            added_seconds,
        )

    def _operators(self, root: nn.Module, run: Callable[[], Any], given: Sequence[Tensor]) -> list[ListedOperator]:
        return list_operators(run, root, [*given, *root.parameters()], self.training)

    def _twin(self, module: nn.Module) -> nn.Module:
        """Return a twin that calls its children as the module does, of this site alone."""
        planner = self.reading.planner
        assert planner is not None
        world = Twins(lambda x: stand_in(x, planner.mode, planner.sharded), watched=False)
        twin: nn.Module = world.of(module)
        set_mode(twin, module.training)
        return twin

    def _call(self, module: nn.Module, twin: nn.Module) -> tuple[Callable[[], Any], list[Tensor]]:
        args, kwargs = Twins(fresh, watched=False, deep=True).of(copy_call(self.reading.calls[module]))
        return lambda: twin(*args, **kwargs), _tensors((args, kwargs))


def with_places(layers: Sequence[Layer], reading: Reading, costs: Costs, step_seconds: float) -> tuple[Layer, ...]:
    """Return the layers, each with its sites and what fusing them is predicted to save of a step.

    Args:
        layers: The layers with their measured seconds.
        reading: The sites of the model.
        costs: The model of the machine.
        step_seconds: The seconds of a step.
    """
    training = any(layer.own_backward.seconds for layer in layers)
    predictor = Predictor(reading, costs, training)
    measured = {key: value for layer in layers for key, value in _own_times(layer)}
    modelled_sites = [(site, predictor.modelled(site)) for site in reading.sites]
    pace = _pace(modelled_sites, measured)
    places: dict[str, list[Place]] = {}
    known = {layer.fqn: layer for layer in layers}
    for site, modelled_site in modelled_sites:
        name = _nearest_layer(site.fqn, known)
        calls = known[name].calls if name in known else 1
        place = _place(site, modelled_site, measured, pace, step_seconds)
        places.setdefault(name, []).append(replace(place, calls=calls))
    return tuple(replace(layer, places=tuple(places.get(layer.fqn, ()))) for layer in layers)


def _own_times(layer: Layer) -> Iterator[tuple[Key, float]]:
    yield (layer.fqn, "forward"), layer.own_forward.seconds
    yield (layer.fqn, "backward"), layer.own_backward.seconds


def _pace(modelled_sites: Iterable[tuple[PlannedPlace, Modelled | str]], measured: Mapping[Key, float]) -> SplitSeconds:
    """Return measured / modelled seconds over all layers with sites, each once: of products, and of everything else."""
    modelled: dict[Key, SplitSeconds] = {}
    for site, modelled_site in modelled_sites:
        if isinstance(modelled_site, Modelled):
            for (name, phase), split in modelled_site.layers.items():
                modelled.setdefault((join_names(site.fqn, name), phase), split)
    both = [(measured[key], split) for key, split in modelled.items() if measured.get(key)]
    mostly_products = [(taken, split.total) for taken, split in both if split.products > _MOSTLY * split.total]
    products = _median_ratio(mostly_products) or _median_ratio((taken, split.total) for taken, split in both) or 1.0
    # The median, so that one long layer with a bad prediction does not decide for all.
    rest = [taken / split.others for taken, split in both if split.others > _MOSTLY * split.total]
    return SplitSeconds(products, median(rest) if rest else products)


def _median_ratio(pairs: Iterable[tuple[float, float]]) -> float | None:
    listed = list(pairs)
    total = sum(modelled for _, modelled in listed)
    return sum(taken for taken, _ in listed) / total if total else None


def _place(
    site: PlannedPlace, modelled: Modelled | str, measured: Mapping[Key, float], pace: SplitSeconds, step: float
) -> Place:
    place = Place(
        site.rule, site.status, site.reason, site.operation, site.file, site.line, part_of=site.part_of,
        reason_code=site.reason_code,
    )  # fmt: skip
    if isinstance(modelled, str):
        return replace(place, reason=place.reason or modelled)
    seconds = _measured_seconds(modelled.before, site, modelled, measured)
    if not seconds:
        return place
    added_seconds = modelled.added_seconds.products * pace.products + modelled.added_seconds.others * pace.others
    predicted = _measured_seconds(modelled.kept_seconds, site, modelled, measured) + max(0.0, added_seconds)
    saving = seconds - predicted
    if saving < LEAST * seconds and place.status == "applies" and not place.reason:
        place = replace(place, reason=_no_gain_reason(seconds, predicted))
    return replace(
        place, seconds=seconds, predicted_seconds=predicted, layers=_layers_of(site, modelled),
        saved_bytes=modelled.original.bytes - modelled.fused.bytes,
        saved_flops=modelled.original.flops - modelled.fused.flops,
        predicted_gain=amdahl(step, saving),
    )  # fmt: skip


def _measured_seconds(
    part: Mapping[Key, SplitSeconds], site: PlannedPlace, modelled: Modelled, measured: Mapping[Key, float]
) -> float:
    """Return the share of `part` in what the site's layers take, for each layer and phase by itself."""
    seconds = 0.0
    for (name, phase), split in part.items():
        layer_operators = modelled.layers.get((name, phase), split).total
        share = min(1.0, split.total / layer_operators) if layer_operators else 0.0
        seconds += measured.get((join_names(site.fqn, name), phase), 0.0) * share
    return seconds


def _layers_of(site: PlannedPlace, modelled: Modelled) -> tuple[str, ...]:
    return tuple(dict.fromkeys((site.fqn, *(join_names(site.fqn, name) for name, _ in modelled.before))))


def _no_gain_reason(seconds: float, predicted: float) -> str:
    if predicted <= seconds:
        return f"nothing to gain: {milliseconds(seconds - predicted)} of {milliseconds(seconds)}"
    now, fused = milliseconds(seconds), milliseconds(predicted)
    return f"nothing to gain: it takes {now} now, and {fused} are predicted for the fused code"


def amdahl(step: float, saving: float) -> float | None:
    """Return the step's time before / after, if it loses `saving` seconds; None if nothing would be left."""
    return step / (step - saving) if step > max(saving, 0.0) else None


def _nearest_layer(name: str, known: Mapping[str, Layer]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _copied_call(function: fx.GraphModule, given: Sequence[Any]) -> tuple[Callable[[], Any], list[Tensor]]:
    """Return a call of a graph on copies of its values, and their tensors."""
    values = [pytree.tree_map(fresh, v) for v in given]
    return lambda: function(*values), _tensors(values)


def _costs_by_key(operators: Iterable[ListedOperator], costs: Costs) -> dict[Key, SplitSeconds]:
    found: dict[Key, SplitSeconds] = {}
    for operator in operators:
        key = operator.module, operator.phase
        found[key] = found.get(key, SplitSeconds()) + _split_seconds(operator, costs)
    return found


def _split_seconds(operator: ListedOperator, costs: Costs) -> SplitSeconds:
    seconds = costs.one(operator).seconds
    return SplitSeconds(seconds, 0.0) if is_product(operator) else SplitSeconds(0.0, seconds)


def _common_operators(before: Iterable[ListedOperator], after: Iterable[ListedOperator]) -> list[ListedOperator]:
    """Return the operators of `before` that also occur in `after`, on operands of the same shapes and dtypes.

    An operator counts as often as it occurs in both.
    """
    remaining = Counter(map(_comparison_key, after))
    found = []
    for operator in before:
        key = _comparison_key(operator)
        if remaining[key]:
            remaining[key] -= 1
            found.append(operator)
    return found


def _comparison_key(operator: ListedOperator) -> Hashable:
    return operator.name, operator.phase, tuple((x.shape, x.dtype) for x in operator.operands)


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]


def _structure(module: nn.Module) -> Hashable:
    """Return the classes and parameters of a module and of its submodules, which equal graphs do not show."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    kinds = tuple((name, type(child).__qualname__) for name, child in module.named_modules())
    return kinds, tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors)
