"""Programs of any length that repeat or nest one construct, for tests of how much work they take.

Each ends in a function `last`, a hand-written SiLU that must be found after everything before it.
"""

from __future__ import annotations

from collections.abc import Callable

_HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_LAST = "\n\ndef last(x):\n    x = x / 1\n    return x * torch.sigmoid(x)\n"
_SILU = "def h0(x):\n    return x * torch.sigmoid(x)\n\n\n"
_ATTENTION = ("q, k, v, n, f", "s = q @ k.transpose(-2, -1)\n", "s.softmax(-1) @ v")


def program(kind: str, length: int) -> str:
    """The program that repeats or nests the construct `kind` `length` times."""
    return _HEAD + KINDS[kind](length) + _LAST


def _function(body: str, arguments: str = "x, w", result: str = "x * torch.sigmoid(x)") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"def g({arguments}):\n{lines}    return {result}\n"


def _repeat(lines: str) -> Callable[[int], str]:
    """A function that repeats `lines`. `@` is replaced by the number of the repetition."""
    body = lambda n: "".join(f"{lines}\n".replace("@", str(i)).replace("<matmul>", "@") for i in range(n))
    return lambda n: _function(body(n), "x, w, u, f, m, q")


def _repeat_masks(lines: str) -> Callable[[int], str]:
    """Attention with repeated masks for its scores."""
    arguments, start, result = _ATTENTION
    masks = lambda n: "".join(f"{lines}\n".replace("@", str(i)) for i in range(n))
    return lambda n: _function(start + masks(n), arguments, result)


def _helpers(calls: str) -> Callable[[int], str]:
    """Helper functions, each of which calls the previous one."""

    def text_of(n: int) -> str:
        inner = "".join(f"def h{i}(x):\n    return {calls.replace('@', str(i - 1))}\n\n\n" for i in range(1, n))
        return _SILU + inner + _function(f"x = h{n - 1}(x)")

    return text_of


def _children(n: int) -> str:
    first = "class M0(nn.Module):\n    def forward(self, x):\n        return x * torch.sigmoid(x)\n\n\n"
    init = "    def __init__(self):\n        super().__init__()\n"
    rest = (
        f"class M{i}(nn.Module):\n{init}        self.a = M{i - 1}()\n        self.b = M{i - 1}()\n\n"
        "    def forward(self, x):\n        return self.a(x) + self.b(self.a(x))\n\n\n"
        for i in range(1, n)
    )
    return first + "".join(rest)


def _module(init: str, forward: str) -> str:
    made = f"class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n{init}"
    return f"{made}\n    def forward(self, x):\n{forward}        return x * torch.sigmoid(x)\n"


def _calls_of_helper(n: int) -> str:
    """Five helpers, each of which calls the previous one up to eighteen times: 18 ** 5 calls."""
    body = "".join(f"    x = h@(x) + {i}.5\n" for i in range(min(n, 18)))
    inner = "".join(f"def h{i}(x):\n{body}    return x\n\n\n".replace("@", str(i - 1)) for i in range(1, 6))
    return _SILU + inner + _function("x = h5(x)")


def _nested_sequentials(n: int) -> str:
    deep = min(n, 60)
    return _module(
        "        self.s = " + "nn.Sequential(" * deep + "nn.ReLU()" + ")" * deep + "\n", "        x = self.s(x)\n"
    )


KINDS: dict[str, Callable[[int], str]] = {
    # expressions that double at each step
    "residuals": _repeat("x = x + torch.relu(x)"),
    "gated residuals": _repeat("x = x + F.gelu(x) * x"),
    "sums with itself": _repeat("x = x + x"),
    "squares": _repeat("x = x * x"),
    "products of sums": _repeat("x = (x + u) * (x + w)"),
    "a walrus": _repeat("x = (y@ := torch.relu(x)) + y@"),
    "conditional expressions": _repeat("x = (torch.relu(x) + x if f[@] else x - w) * x"),
    "branches": _repeat("if f[@]:\n    x = torch.relu(x) + x\nelse:\n    x = x * x"),
    "branches around dropout": _repeat("if f[@]:\n    x = F.dropout(x, 0.1)"),
    "stacks": _repeat("x = torch.stack([x, x])"),
    "pairs": _repeat("p = (x, x) if @ == 0 else (p, p)"),
    "maxima": _repeat("x = torch.maximum(x, x * 0.5) + torch.minimum(x, w)"),
    "statements at the top level": lambda n: "x = torch.ones(3)\n" + "x = x + torch.relu(x)\n" * n,
    # layers that rules match
    "SiLUs": _repeat("x = x <matmul> w\nx = x * torch.sigmoid(x)"),
    "SiLUs of SiLUs": _repeat("x = x * torch.sigmoid(x)"),
    "GELUs": _repeat("x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))"),
    "GELUs by tanh": _repeat("x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))"),
    "RMS norms": _repeat("x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w"),
    "layer norms": _repeat(
        "x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-6) * w + u"
    ),
    "sums and norms": _repeat("x = x + torch.relu(x)\nx = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w"),
    "attention": _repeat("x = torch.softmax(x <matmul> x.transpose(-2, -1) / 8, -1) <matmul> x"),
    "attention with a mask": _repeat(
        "s = x <matmul> x.transpose(-2, -1) / 8\nif w is not None:\n    s = s + w\nx = s.softmax(-1) <matmul> x"
    ),
    "gated MLPs": _repeat("x = (F.silu(x <matmul> w) * (x <matmul> u)) <matmul> m"),
    "rotary embeddings": _repeat("x1, x2 = x.chunk(2, -1)\nx = x * u + torch.cat([-x2, x1], -1) * w"),
    "losses": _repeat("y = F.log_softmax(x, -1)\nz = F.nll_loss(y, w)\nx = x + z"),
    "softmaxes": _repeat("e = torch.exp(x - x.max(-1, keepdim=True)[0])\nx = e / e.sum(-1, keepdim=True)"),
    "SiLUs in loops": _repeat("for i in w:\n    x = x * torch.sigmoid(x)"),
    "SiLUs in `with`": _repeat("with torch.no_grad():\n    x = x * torch.sigmoid(x)"),
    "SiLUs in `try`": _repeat("try:\n    x = x * torch.sigmoid(x)\nexcept ValueError:\n    x = x + 1"),
    "SiLUs in map": _repeat("x, w = map(lambda t: t * torch.sigmoid(t), (x, w))"),
    "SiLUs in lambdas": _repeat("f@ = lambda t: t * torch.sigmoid(t) + @"),
    "SiLUs that are stored": _repeat("q.a@ = x * torch.sigmoid(x)\nx = q.a@ + x"),
    "SiLUs that are deleted": _repeat("y = x * torch.sigmoid(x)\nx = y + w\ndel y"),
    "SiLUs of one value": _repeat("y@ = x * torch.sigmoid(x) * @"),
    # chains
    "products": _repeat("x = x * w[@]"),
    "sums": _repeat("x = x + w[@]"),
    "quotients": _repeat("x = w[@] / x"),
    "calls": _repeat("x = torch.relu(x)"),
    "writes": _repeat("x += w"),
    "writes to parts": _repeat("x[@] = w"),
    "views that are written": _repeat("y@ = x[@]\ny@.relu_()"),
    "views": _repeat("x = x.transpose(1, 2).contiguous().view(4, 4, 4)"),
    "casts": _repeat("x = x.float().relu().to(x.dtype)"),
    "sizes": _repeat("n = x.size(0) if @ == 0 else n * n + n"),
    "unknown calls": _repeat("x = foo(x, @)"),
    "f-strings": _repeat("s = f'{x} {w}' if @ == 0 else f'{s}{s}'"),
    "one long product": lambda n: _function("x = " + " * ".join(f"w[{i}]" for i in range(n))),
    "one long sum": lambda n: _function("x = " + " + ".join(f"w[{i}]" for i in range(n))),
    "one long list": lambda n: _function("x = [" + ", ".join(f"w[{i}]" for i in range(n)) + "][0]"),
    "one line": lambda n: _function("; ".join(["x = x * torch.sigmoid(x)"] * n)),
    # masks
    "masks that are there or not": _repeat_masks("if n[@] is not None:\n    s = s + n[@]"),
    "fills that are there or not": _repeat_masks("if n[@] is not None:\n    s = s.masked_fill(n[@], float('-inf'))"),
    "masks of two kinds": _repeat_masks("if f[@]:\n    s = s + n[@]\nelse:\n    s = s.masked_fill(n[@], -1e9)"),
    "masks one after the other": _repeat_masks("s = s + n[@]"),
    "fills one after the other": _repeat_masks("s = torch.where(n[@], s, float('-inf'))"),
    "masks of views": _repeat_masks("s = s.view(b, h, t, t)\ns = s + n[@]\ns = s.view(b * h, t, t)"),
    "scales that are there or not": _repeat_masks("if f[@]:\n    s = s * n[@]"),
    # functions and children that are read at each call
    "helpers that call each other twice": _helpers("h@(x) + h@(x + 1)"),
    "helpers of helpers": _calls_of_helper,
    "one of two helpers": lambda n: _SILU + _SILU.replace("h0", "h1") + _repeat("a = h0 if f[@] else h1\nx = a(x)")(n),
    "children that call each other twice": _children,
    "a long Sequential": lambda n: _module(
        f"        self.s = nn.Sequential({', '.join(['nn.Linear(4, 4), nn.ReLU()'] * n)})\n", "        x = self.s(x)\n"
    ),
    "calls of a long Sequential": lambda n: _module(
        f"        self.s = nn.Sequential({', '.join(['nn.Linear(4, 4), nn.ReLU()'] * n)})\n",
        "        x = self.s(x)\n" * n,
    ),
    "nested Sequentials": _nested_sequentials,
    "functions": lambda n: "\n\n".join(f"def g{i}(x):\n    return x * torch.sigmoid(x)\n" for i in range(n)),
    # constants
    "powers of powers": lambda n: _function("x = x / " + " ** ".join(["9"] * n)),
    "numbers that are squared": _repeat("c = 3 if @ == 0 else c * c\nx = x * c"),
    "names of numbers": lambda n: "C0 = 9\n" + "".join(f"C{i} = C{i - 1} * C{i - 1}\n" for i in range(1, n)),
}
