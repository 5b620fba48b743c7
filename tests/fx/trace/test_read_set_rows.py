"""A change of anything that forward reads, besides its arguments, is noticed.

The table lists where a value is, how it is read and how it changes. Each row runs with and without autofuse, before and
after the change, in float64.
"""

from __future__ import annotations

import decimal
import sys
import types
import warnings
from textwrap import indent
from typing import Any

import pytest
import torch
from torch import nn

import autofuse

START = """
import array, collections, contextlib, copy, ctypes, dataclasses, enum, functools, importlib, inspect, operator
import sys, threading, types, typing, weakref
import torch
from torch import nn

def holder(**values):
    class Plain: pass
    made = Plain()
    vars(made).update(values)
    return made
"""

# Description: (the module's code, the expression that forward reads, the statement that changes it).
ROWS: dict[str, tuple[str, str, str]] = {
    "class method": ("class C:\n t = 0.25\n @classmethod\n def get(cls): return cls.t", "C.get()", "C.t = 3.0"),
    "class method of a subclass": (
        "class B:\n @classmethod\n def get(cls): return cls.t\nclass C(B): t = 0.25", "C.get()", "C.t = 3.0"),
    "inherited by a class method": (
        "class B:\n t = 0.25\n @classmethod\n def get(cls): return cls.t\nclass C(B): pass", "C.get()", "C.t = 3.0"),
    "singleton": (
        "class C:\n one = None\n def __init__(self): self.t = 0.25\n @classmethod\n def get(cls): return cls.one\n"
        "C.one = C()", "C.get().t", "C.one.t = 3.0"),
    "singleton replaced": (
        "class C:\n one = None\n def __init__(self, t): self.t = t\n @classmethod\n def get(cls): return cls.one\n"
        "C.one = C(0.25)", "C.get().t", "C.one = C(3.0)"),
    "hasattr": ("c = holder()", "3.0 if hasattr(c, 't') else 0.25", "c.t = 1"),
    "hasattr, of a class": ("class C: pass\nc = C()", "3.0 if hasattr(c, 't') else 0.25", "C.t = 1"),
    "hasattr, asked of the class": ("class C: pass", "3.0 if hasattr(C, 't') else 0.25", "C.t = 1"),
    "hasattr, of a module": (
        "c = types.ModuleType('c')", "3.0 if hasattr(c, 't') else 0.25", "c.t = 1"),
    "getattr with a default": ("c = holder(s=1)", "getattr(c, 't', 0.25)", "c.t = 3.0"),
    "getattr with a default, of a base": (
        "class A: pass\nclass C(A): pass\nc = C()", "getattr(c, 't', 0.25)", "A.t = 3.0"),
    "AttributeError": (
        "c = holder()\ndef get():\n try: return c.t\n except AttributeError: return 0.25", "get()", "c.t = 3.0"),
    "AttributeError, of a class": (
        "class C: pass\ndef get():\n try: return C.t\n except AttributeError: return 0.25", "get()", "C.t = 3.0"),
    "AttributeError, in a method": (
        "class C:\n def get(self):\n  try: return self.t\n  except AttributeError: return 0.25\nc = C()",
        "c.get()", "c.t = 3.0"),
    "slot that is empty": (
        "class C: __slots__ = ('t',)\nc = C()\ndef get():\n try: return c.t\n except AttributeError: return 0.25",
        "get()", "c.t = 3.0"),
    "NameError": ("def get():\n try: return T\n except NameError: return 0.25", "get()", "globals()['T'] = 3.0"),
    "suppressed": (
        "c = holder()\ndef get():\n with contextlib.suppress(AttributeError): return c.t\n return 0.25",
        "get()", "c.t = 3.0"),
    "cached function, cleared": (
        "c = holder(t=0.25)\n@functools.cache\ndef get(): return c.t", "get()", "c.t = 3.0; get.cache_clear()"),
    "cached function that calls another": (
        "c = holder(t=0.25)\ndef inner(): return c.t\n@functools.cache\ndef get(): return inner()\nget()",
        "get()", "c.t = 3.0; get.cache_clear()"),
    "cached method": (
        "class C:\n t = 0.25\n @functools.lru_cache\n def get(self): return self.t\nc = C()\nc.get()",
        "c.get()", "c.t = 3.0; C.get.cache_clear()"),
    "cached property": (
        "class C:\n def __init__(self): self.t = 0.25\n @functools.cached_property\n def got(self): return self.t\n"
        "c = C()\nc.got", "c.got", "c.got = 3.0"),
    "cached property, deleted": (
        "class C:\n def __init__(self): self.t = 0.25\n @functools.cached_property\n def got(self): return self.t\n"
        "c = C()\nc.got", "c.got", "c.t = 3.0; del c.got"),
    "import, replaced": (
        "sys.modules['read_set_c'] = holder(t=0.25)\ndef get():\n import read_set_c\n return read_set_c.t",
        "get()", "sys.modules['read_set_c'] = holder(t=3.0)"),
    "import, changed": (
        "sys.modules['read_set_c'] = types.ModuleType('read_set_c')\nsys.modules['read_set_c'].t = 0.25\n"
        "def get():\n from read_set_c import t\n return t", "get()", "sys.modules['read_set_c'].t = 3.0"),
    "import of a submodule": (
        "p, q = types.ModuleType('read_set_p'), types.ModuleType('read_set_p.q')\np.q = q; q.t = 0.25\n"
        "p.__path__ = []\nsys.modules['read_set_p'] = p; sys.modules['read_set_p.q'] = q\n"
        "def get():\n import read_set_p.q\n return read_set_p.q.t", "get()", "p.q = holder(t=3.0)"),
    "sys.modules": (
        "sys.modules['read_set_c'] = holder(t=0.25)", "sys.modules['read_set_c'].t",
        "sys.modules['read_set_c'] = holder(t=3.0)"),
    "module with __getattr__": (
        "c = types.ModuleType('c')\nc.__getattr__ = lambda name: {'t': 0.25}[name]", "c.t", "c.t = 3.0"),
    "number of C": ("c = ctypes.c_double(0.25)", "c.value", "c.value = 3.0"),
    "structure of C": (
        "class C(ctypes.Structure): _fields_ = [('t', ctypes.c_double)]\nc = C(0.25)", "c.t", "c.t = 3.0"),
    "bytearray": ("c = bytearray([1])", "c[0] * 0.25", "c[0] = 8"),
    "memoryview": ("c = memoryview(bytearray([1]))", "c[0] * 0.25", "c[0] = 8"),
    "array": ("c = array.array('d', [0.25])", "c[0]", "c[0] = 3.0"),
    "deque": ("c = collections.deque([0.25])", "c[0]", "c[0] = 3.0"),
    "code of a helper": (
        "def get(): return 0.25", "get()", "get.__code__ = (lambda: 3.0).__code__"),
    "code of a helper of a helper": (
        "def inner(): return 0.25\ndef get(): return inner()", "get()", "inner.__code__ = (lambda: 3.0).__code__"),
    "code of a static method": (
        "class C:\n @staticmethod\n def get(): return 0.25", "C.get()", "C.get.__code__ = (lambda: 3.0).__code__"),
    "code of a function in a dict": (
        "c = {'f': lambda: 0.25}", "c['f']()", "c['f'].__code__ = (lambda: 3.0).__code__"),
    "function in a dict": ("c = {'f': lambda: 0.25}", "c['f']()", "c['f'] = lambda: 3.0"),
    "defaults of a lambda": ("get = lambda t=0.25: t", "get()", "get.__defaults__ = (3.0,)"),
    "missing key": ("c = {'a': 1}", "c.get('t', 0.25)", "c['t'] = 3.0"),
    "missing key among objects": ("c = {'a': holder()}", "c.get('t', 0.25)", "c['t'] = 3.0"),
    "missing key of a large dict": (
        "c = {i: i for i in range(1000)}", "c.get('t', 0.25)", "c['t'] = 3.0"),
    "membership": ("c = {1, 2}", "3.0 if 5 in c else 0.25", "c.add(5)"),
    "defaultdict": ("c = collections.defaultdict(float, t=0.25)", "c['t']", "c['t'] = 3.0"),
    "default of a defaultdict": (
        "c = collections.defaultdict(lambda: 0.25)", "c.get('t', c.default_factory())",
        "c.default_factory = lambda: 3.0"),
    "__missing__": (
        "class D(dict):\n t = 0.25\n def __missing__(self, key): return self.t\nc = D()", "c['a']", "c.t = 3.0"),
    "ChainMap": ("c = collections.ChainMap({}, {'t': 0.25})", "c['t']", "c['t'] = 3.0"),
    "ChainMap, below": ("d = {'t': 0.25}\nc = collections.ChainMap({}, d)", "c['t']", "d['t'] = 3.0"),
    "UserDict": ("c = collections.UserDict(t=0.25)", "c['t']", "c['t'] = 3.0"),
    "mapping proxy": ("d = {'t': 0.25}\nc = types.MappingProxyType(d)", "c['t']", "d['t'] = 3.0"),
    "weak dict": (
        "c, key = weakref.WeakKeyDictionary(), holder()\nc[key] = 0.25", "c[key]", "c[key] = 3.0"),
    "weak values": (
        "one, two = holder(t=0.25), holder(t=3.0)\nc = weakref.WeakValueDictionary(a=one)", "c['a'].t", "c['a'] = two"),
    "metaclass": (
        "class Meta(type): t = 0.25\nclass C(metaclass=Meta): pass", "C.t", "Meta.t = 3.0"),
    "property of a metaclass": (
        "class Meta(type):\n s = 0.25\n @property\n def t(cls): return cls.s\nclass C(metaclass=Meta): pass",
        "C.t", "C.s = 3.0"),
    "super": (
        "class B: t = 0.25\nclass C(B):\n t = 1.0\n def get(self): return super().t\nc = C()", "c.get()", "B.t = 3.0"),
    "type of an object": ("class C: t = 0.25\nc = C()", "type(c).t", "C.t = 3.0"),
    "class in a dict": ("class C: t = 0.25\nc = {'a': C}", "c['a'].t", "C.t = 3.0"),
    "class in a list of objects": ("class C: t = 0.25\nc = [C, holder()]", "c[0].t", "C.t = 3.0"),
    "module in a dict": (
        "m = types.ModuleType('m')\nm.t = 0.25\nc = {'a': m}", "c['a'].t", "m.t = 3.0"),
    "state of a descriptor": (
        "class D:\n def __init__(self): self.s = 0.25\n def __get__(self, one, cls): return self.s\n"
        "class C: t = D()\nc = C()", "c.t", "vars(C)['t'].s = 3.0"),
    "property": (
        "class C:\n def __init__(self): self.s = 0.25\n @property\n def t(self): return self.s\nc = C()",
        "c.t", "c.s = 3.0"),
    "property, replaced": (
        "class C:\n @property\n def t(self): return 0.25\nc = C()", "c.t", "C.t = property(lambda self: 3.0)"),
    "__getattr__": (
        "class C:\n def __init__(self): self.s = {'t': 0.25}\n def __getattr__(self, name): return self.s[name]\n"
        "c = C()", "c.t", "c.s['t'] = 3.0"),
    "__getattr__, hidden": (
        "class C:\n def __init__(self): self.s = {'t': 0.25}\n def __getattr__(self, name): return self.s[name]\n"
        "c = C()", "c.t", "c.t = 3.0"),
    "__getitem__": (
        "class C:\n def __init__(self): self.s = [0.25]\n def __getitem__(self, i): return self.s[i]\nc = C()",
        "c[0]", "c.s[0] = 3.0"),
    "__getitem__, replaced": (
        "class C:\n def __getitem__(self, i): return 0.25\nc = C()", "c[0]", "C.__getitem__ = lambda self, i: 3.0"),
    "__call__, replaced": (
        "class C:\n def __call__(self): return 0.25\nc = C()", "c()", "C.__call__ = lambda self: 3.0"),
    "__float__": (
        "class C:\n def __init__(self): self.s = 0.25\n def __float__(self): return self.s\nc = C()",
        "float(c)", "c.s = 3.0"),
    "__len__, replaced": ("class C:\n def __len__(self): return 1\nc = C()", "len(c)", "C.__len__ = lambda self: 3"),
    "thread-local": ("c = threading.local()\nc.t = 0.25", "c.t", "c.t = 3.0"),
    "thread-local of a class": ("class C(threading.local): t = 0.25\nc = C()", "c.t", "c.t = 3.0"),
    "dataclass": ("@dataclasses.dataclass\nclass C:\n t: float = 0.25\nc = C()", "c.t", "c.t = 3.0"),
    "default factory": (
        "@dataclasses.dataclass\nclass C:\n t: list = dataclasses.field(default_factory=lambda: [0.25])\nc = C()",
        "c.t[0]", "c.t[0] = 3.0"),
    "made in forward": (
        "@dataclasses.dataclass\nclass C:\n t: list = dataclasses.field(default_factory=lambda: list(D))\nD = [0.25]",
        "C().t[0]", "D[0] = 3.0"),
    "enum": ("class E(enum.Enum):\n A = 0.25\n B = 3.0\nc = holder(t=E.A)", "c.t.value", "c.t = E.B"),
    "enum's list": ("class E(enum.Enum):\n A = [0.25]", "E.A.value[0]", "E.A.value[0] = 3.0"),
    "enum's list, held": ("class E(enum.Enum):\n A = [0.25]\nc = holder(t=E.A)", "c.t.value[0]", "E.A.value[0] = 3.0"),
    "attribute of an enum's member": ("class E(enum.Enum):\n A = 1\nE.A.t = 0.25", "E.A.t", "E.A.t = 3.0"),
    "attribute of a number": ("class N(int): pass\nc = N(1)\nc.t = 0.25", "c.t", "c.t = 3.0"),
    "attribute of a text": ("class N(str): pass\nc = holder(n=N('a'))\nc.n.t = 0.25", "c.n.t", "c.n.t = 3.0"),
    "named tuple": (
        "class N(typing.NamedTuple):\n t: list\nc = N([0.25])", "c.t[0]", "c.t[0] = 3.0"),
    "partial of a method": (
        "class C:\n def __init__(self): self.t = 0.25\n def get(self, by): return self.t * by\n"
        "c = C()\nf = functools.partial(c.get, 1)", "f()", "c.t = 3.0"),
    "partial's keywords": (
        "def get(t): return t\nf = functools.partial(get, t=0.25)", "f()", "f.keywords['t'] = 3.0"),
    "single dispatch": (
        "@functools.singledispatch\ndef get(x): return 0.25", "get(1)", "get.register(int)(lambda x: 3.0)"),
    "globals": ("T = 0.25", "globals()['T']", "globals()['T'] = 3.0"),
    "vars of an object": ("c = holder(t=0.25)", "vars(c)['t']", "c.t = 3.0"),
    "locals": ("c = holder(t=0.25)\ndef get():\n t = c.t\n return locals()['t']", "get()", "c.t = 3.0"),
    "frame": (
        "T = 0.25\ndef get(): return sys._getframe().f_globals['T']", "get()", "globals()['T'] = 3.0"),
    "inspect": (
        "T = 0.25\ndef get(): return inspect.currentframe().f_globals['T']", "get()", "globals()['T'] = 3.0"),
    "import by name": (
        "sys.modules['read_set_c'] = holder(t=0.25)", "importlib.import_module('read_set_c').t",
        "sys.modules['read_set_c'] = holder(t=3.0)"),
    "attrgetter": (
        "c = holder(s=holder(t=0.25))\nget = operator.attrgetter('s.t')", "get(c)", "c.s.t = 3.0"),
    "itemgetter": ("c = {'t': 0.25}\nget = operator.itemgetter('t')", "get(c)", "c['t'] = 3.0"),
    "bound method of a dict": ("c = {'t': 0.25}\nget = c.get", "get('t')", "c['t'] = 3.0"),
    "signature": (
        "def f(t=0.25): pass", "inspect.signature(f).parameters['t'].default", "f.__defaults__ = (3.0,)"),
    "defaults of a function": ("def f(t=0.25): pass", "f.__defaults__[0]", "f.__defaults__ = (3.0,)"),
    "annotation": ("class C:\n t: 0.25", "C.__annotations__['t']", "C.__annotations__['t'] = 3.0"),
    "copy of an object": ("c = holder(t=0.25)", "copy.copy(c).t", "c.t = 3.0"),
    "operator on an object": (
        "class C:\n def __init__(self): self.t = 0.25\n def __mul__(self, by): return self.t * by\nc = C()",
        "(c * 1.0)", "c.t = 3.0"),
    "string format": ("c = holder(t=0.25)", "float('{0.t}'.format(c))", "c.t = 3.0"),
    "sum of a list": ("c = [0.125, 0.125]", "sum(c)", "c.append(2.0)"),
    "max over objects": (
        "c = [holder(t=0.25), holder(t=0.1)]", "max(o.t for o in c)", "c[1].t = 3.0"),
    "map over a list": ("c = [0.25]", "list(map(float, c))[0]", "c[0] = 3.0"),
    "method of a class that is replaced": (
        "class C:\n def get(self): return 0.25\nc = C()", "c.get()", "C.get = lambda self: 3.0"),
    "class set": (
        "class C: t = 0.25\nclass D: t = 3.0\nc = C()", "c.t", "c.__class__ = D"),
    "bases set": (
        "class A: t = 0.25\nclass B: t = 3.0\nclass C(A): pass\nc = C()", "c.t", "C.__bases__ = (B,)"),
    "generator's source": ("c = [0.25]\ndef get():\n yield from c", "next(get())", "c[0] = 3.0"),
    "closure": (
        "def make():\n t = 0.25\n def get(): return t\n def put(v):\n  nonlocal t\n  t = v\n return get, put\n"
        "get, put = make()", "get()", "put(3.0)"),
    "context manager of the user's": (
        "c = holder(t=0.25)\n@contextlib.contextmanager\ndef got():\n yield c.t\n"
        "def get():\n with got() as t: return t",
        "get()", "c.t = 3.0"),
    "True for 1, in a list": ("c = [1]", "3.0 if c[0] is True else 0.25", "c[0] = True"),
    "a float for an integer, in a list": ("c = [2]", "0.25 if isinstance(c[0], int) else 3.0", "c[0] = 2.0"),
    "True for 1, in a tuple": ("c = holder(t=(1, 0))", "3.0 if c.t[0] is True else 0.25", "c.t = (True, 0)"),
    "True for 1, in a frozenset": (
        "c = holder(t=frozenset({1}))", "3.0 if True in map(lambda v: v is True, c.t) else 0.25",
        "c.t = frozenset({True})"),
    "-0.0 for 0.0": ("import math\nc = holder(t=0.0)", "0.25 if math.copysign(1, c.t) > 0 else 3.0", "c.t = -0.0"),
    "-0.0 for 0.0, in a dict": (
        "import math\nc = {'t': 0.0}", "0.25 if math.copysign(1, c['t']) > 0 else 3.0", "c['t'] = -0.0"),
    "-0.0 for 0.0, in a complex number": (
        "import math\nc = holder(t=complex(1, 0.0))", "0.25 if math.copysign(1, c.t.imag) > 0 else 3.0",
        "c.t = complex(1, -0.0)"),
    "1 for True, as a key": (
        "c = {True: 's', 2: 't'}", "0.25 if next(iter(c)) is True else 3.0", "c.clear(); c.update({1: 's', 2: 't'})"),
    "order of a dict of texts": ("c = {'a': 'x', 'b': 'y'}", "0.25 if next(iter(c)) == 'a' else 3.0",
        "c['a'] = c.pop('a')"),
    "order of a dict of objects": (
        "c = {'a': holder(t=0.25), 'b': holder(t=3.0)}", "next(iter(c.values())).t", "c['a'] = c.pop('a')"),
    "another dtype, in an array": (
        "import numpy\nc = holder(t=numpy.zeros(2, dtype=numpy.int64))", "0.25 if c.t.dtype.kind == 'i' else 3.0",
        "c.t = numpy.zeros(2)"),
    "level of a logger": (
        "import logging\nlog = logging.getLogger('read_set_rows')\nlog.setLevel(20)",
        "0.25 if log.level > 10 else 3.0", "log.setLevel(10)"),
    "a class that is registered with an abstract one": (
        "import abc\nclass A(abc.ABC): pass\nclass C: pass\nc = C()", "3.0 if isinstance(c, A) else 0.25",
        "A.register(C)"),
    "__getattr__ of a module": (
        "c = types.ModuleType('c')\nc.__getattr__ = lambda name: 0.25", "c.t", "c.__getattr__ = lambda name: 3.0"),
    "class of a float of the user's": ("class C(float): k = 1.0\nc = C(0.25)", "float(c) * c.k", "C.k = 3.0"),
    "class of a text of the user's": ("class C(str): k = 0.25\nc = C('a')", "c.k", "C.k = 3.0"),
    "what a partial function calls": (
        "def times(a, b): return a * b\nc = functools.partial(times, 1.0, b=0.25)", "c()",
        "c.__setstate__((times, (4.0,), {'b': 3.0}, {}))"),
    "value of a member of an enumeration": (
        "class C(enum.Enum): A = [0.25]", "C.A.value[0]", "C.A._value_ = [3.0]"),
    "precision of decimal": (
        "import decimal", "decimal.getcontext().prec / 112", "decimal.getcontext().prec += 28"),
    "descriptor that stores by id": (
        "class C:\n kept = {}\n def __get__(self, owner, cls): return self.kept.get(id(owner), 0.25)\n"
        " def __set__(self, owner, v): self.kept[id(owner)] = v\nclass H: t = C()\nc = H()", "c.t", "c.t = 3.0"),
    "a method of tensors": (
        "OLD = torch.Tensor.softmax", "0.25", "torch.Tensor.softmax = lambda self, dim: OLD(self, dim) * 2"),
}  # fmt: skip


class Scores(nn.Module):
    """Attention with a weight of its own for the keys, so that it can be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, 8))


def namespace_of(code: str, read: str, change: str) -> dict[str, Any]:
    module = types.ModuleType("read_set_rows")
    sys.modules["read_set_rows"], namespace = module, vars(module)
    namespace["Scores"] = Scores
    forward = f"        return ((x * self.w) @ x.transpose(-2, -1) * ({read})).softmax(-1) @ x"
    lines = [START, code, "class M(Scores):", "    def forward(self, x):", forward, "def change():"]
    exec(compile("\n".join([*lines, indent(change, "    ")]), "read_set_rows.py", "exec", dont_inherit=True), namespace)
    return namespace


def results_of(row: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, fused: bool) -> list[torch.Tensor]:
    """Returns three results before the change and three after it."""
    with monkeypatch.context() as patch, warnings.catch_warnings(), decimal.localcontext():
        warnings.simplefilter("ignore")
        namespace = namespace_of(*row)
        patch.setattr(torch.Tensor, "softmax", torch.Tensor.softmax)
        model, x = namespace["M"]().double(), torch.randn(2, 4, 8, dtype=torch.float64)
        if fused:
            autofuse.optimize(model, x, tune=False)
        results = [model(x) for _ in range(3)]
        namespace["change"]()
        return results + [model(x) for _ in range(3)]


@pytest.mark.parametrize("name", ROWS)
def test_a_change_of_what_forward_reads_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("read_set_rows", "read_set_c", "read_set_p", "read_set_p.q"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    torch.manual_seed(0)
    before = results_of(ROWS[name], monkeypatch, fused=False)
    torch.manual_seed(0)
    after = results_of(ROWS[name], monkeypatch, fused=True)
    assert not torch.allclose(before[0], before[-1], atol=1e-6), "the row changes nothing"
    torch.testing.assert_close(after, before, atol=1e-9, rtol=1e-9)
