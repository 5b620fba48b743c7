"""Inductor compiles for the same vectors as without us, and tries fewer widths to find them."""

from __future__ import annotations

import functools
import platform
from types import SimpleNamespace

import pytest

from autofuse.kernels import packages, vector_widths
from autofuse.kernels.vector_widths import only_widest_vectors, presumed_widest_vectors
from autofuse.torch_private import on_demand

WIDTHS = (512, 256, 128)


class Width:
    """Stands for one entry of Inductor's list, and notes that it was tried."""

    def __init__(self, bits: int, works: bool, tried: list[int]) -> None:
        self.bits, self._works, self._tried = bits, works, tried

    def __str__(self) -> str:
        return f"w{self.bits}"

    def __bool__(self) -> bool:
        self._tried.append(self.bits)
        return self._works


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr(vector_widths, "platform", SimpleNamespace(machine=lambda: "x86_64"))
    return []


def _use(monkeypatch: pytest.MonkeyPatch, works: set[int], features: set[int], tried: list[int]) -> None:
    fake = SimpleNamespace(
        x86_isa_checker=lambda: [f"w{bits}" for bits in features],
        supported_vec_isa_list=[Width(bits, bits in works, tried) for bits in WIDTHS],
        valid_vec_isa_list=SimpleNamespace(cache_info=lambda: SimpleNamespace(currsize=0)),
    )
    # `on_demand` keeps what it has looked up.
    monkeypatch.setitem(vars(on_demand), "cpu_vec_isa", fake)
    monkeypatch.setitem(vars(on_demand), "inductor_config", SimpleNamespace(cpp=SimpleNamespace(simdlen=None)))


@pytest.mark.parametrize(("works", "features", "found", "looked_at"), [
    ({512, 256, 128}, {512, 256, 128}, [512], [512]),
    ({256, 128}, {512, 256, 128}, [256], [512, 256]),
    ({512, 256, 128}, {256, 128}, [256], [256]),
    (set(), {512, 256, 128}, [], [512, 256, 128]),
    ({512}, set(), [], []),
])  # fmt: skip
def test_the_first_width_that_works_is_found(
    monkeypatch: pytest.MonkeyPatch, tried: list[int], works: set[int], features: set[int], found: list[int],
    looked_at: list[int],
) -> None:  # fmt: skip
    _use(monkeypatch, works, features, tried)
    before = on_demand.cpu_vec_isa.valid_vec_isa_list
    with only_widest_vectors():
        assert [width.bits for width in on_demand.cpu_vec_isa.valid_vec_isa_list()] == found
    assert tried == looked_at
    assert on_demand.cpu_vec_isa.valid_vec_isa_list is before


@pytest.mark.parametrize("why", ["environment", "config", "tried before", "processor", "another Inductor"])
def test_inductor_decides_if_the_user_chose_or_nothing_is_gained(
    monkeypatch: pytest.MonkeyPatch, tried: list[int], why: str
) -> None:
    _use(monkeypatch, {512}, {512}, tried)
    inductor = on_demand.cpu_vec_isa
    if why == "environment":
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    elif why == "config":
        on_demand.inductor_config.cpp.simdlen = 256
    elif why == "tried before":
        inductor.valid_vec_isa_list = SimpleNamespace(cache_info=lambda: SimpleNamespace(currsize=1))
    elif why == "processor":
        monkeypatch.setattr(vector_widths, "platform", SimpleNamespace(machine=lambda: "aarch64"))
    else:
        del inductor.valid_vec_isa_list
    before = getattr(inductor, "valid_vec_isa_list", None)
    with only_widest_vectors():
        assert getattr(inductor, "valid_vec_isa_list", None) is before


@pytest.mark.night  # compiles for every width; the tests above take the same path with stand-ins
@pytest.mark.skipif(bool(packages.COMPILER.missing()) or platform.machine() != "x86_64", reason="needs a compiler")
def test_inductor_picks_the_same_vectors() -> None:
    inductor = on_demand.cpu_vec_isa
    inductor.valid_vec_isa_list.cache_clear()
    with only_widest_vectors():
        ours = inductor.pick_vec_isa()
    assert str(ours) == str(inductor.pick_vec_isa())
    assert inductor.valid_vec_isa_list.cache_info().currsize == 1, "Inductor made its own list afterwards"


class Probed:
    """Stands for a width that a test program decides, whose answer Inductor remembers."""

    def check_build(self, code: str) -> bool:
        return False

    def __str__(self) -> str:
        return "w512"

    @functools.cache  # noqa: B019
    def __bool__(self) -> bool:
        self.tried = self.check_build("a program")
        return self.tried


class ProbedToo(Probed):
    """A width whose answer needs that of another."""

    @functools.cache  # noqa: B019
    def __bool__(self) -> bool:
        return super().__bool__() and self.check_build("another program")


def test_the_widest_vectors_are_presumed_only_in_the_block(monkeypatch: pytest.MonkeyPatch, tried: list[int]) -> None:
    _use(monkeypatch, set(), {512}, tried)
    width, inductor = ProbedToo(), on_demand.cpu_vec_isa
    inductor.VecISA, inductor.supported_vec_isa_list = Probed, [width]
    width.tried = None  # type: ignore[assignment]
    own = Probed.check_build
    with presumed_widest_vectors() as presumed:
        assert presumed
        assert inductor.valid_vec_isa_list() == [width]
    assert Probed.check_build is own
    assert width.tried is None, "what the block wrote is restored"
    assert not width, "the test program decides again"


def test_nothing_is_presumed_if_the_user_chose(monkeypatch: pytest.MonkeyPatch, tried: list[int]) -> None:
    _use(monkeypatch, {512}, {512}, tried)
    on_demand.cpu_vec_isa.VecISA = Probed
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    with presumed_widest_vectors() as presumed:
        assert not presumed


@pytest.mark.night  # compiles a test program; the tests above take the same path with stand-ins
@pytest.mark.skipif(bool(packages.COMPILER.missing()) or platform.machine() != "x86_64", reason="needs a compiler")
def test_the_presumed_vectors_are_those_that_inductor_picks() -> None:
    inductor = on_demand.cpu_vec_isa
    inductor.valid_vec_isa_list.cache_clear()
    with presumed_widest_vectors():
        ours = inductor.pick_vec_isa()
        flags = ours.build_arch_flags()
    assert str(ours) == str(inductor.pick_vec_isa())
    assert flags == inductor.pick_vec_isa().build_arch_flags()
