# ruff: noqa
"""Hand-written activations, gated MLPs, and linear-activation-linear."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


class Erf(nn.Module):
    rule = "AF301"


class ErfHalfFirst(Erf):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


class ErfHalfSecond(Erf):
    def forward(self, x):
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class ErfHalfLast(Erf):
    def forward(self, x):
        return x * (1.0 + torch.erf(x / math.sqrt(2.0))) * 0.5


class ErfHalved(Erf):
    def forward(self, x):
        return x * (1 + torch.erf(x / 2**0.5)) / 2


class ErfDistribution(Erf):
    def forward(self, x):
        cdf = 0.5 * (1.0 + torch.erf(x / np.sqrt(2.0)))
        return x * cdf


class ErfDigits(Erf):
    def forward(self, x):
        return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))


class ErfMethod(Erf):
    def forward(self, x):
        return (x / math.sqrt(2)).erf().add(1).mul(x).mul(0.5)


class ErfHalves(Erf):
    """0.5 + 0.5 * erf."""

    def forward(self, x):
        return x * (0.5 + 0.5 * torch.erf(x / math.sqrt(2.0)))


class ErfOfProjection(Erf):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(24, 48)

    def forward(self, x):
        x = self.dense(x)
        x = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        return x


class ErfInFunction(Erf):
    safety = "unsafe"  # the function may be given integers

    def forward(self, x):
        return gelu(x) + 1


def gelu(x):
    """Implementation of the gelu activation function."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class TanhPow(Erf):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class TanhMingpt(Erf):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class TanhCube(Erf):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x**3)))


class TanhProduct(Erf):
    digits = 1e-9

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


class TanhMegatron(Erf):
    digits = 1e-8

    def forward(self, x):
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


class TanhFactoredOtherwise(Erf):
    digits = 1e-9

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


class TanhTensorRoot(Erf):
    """The book's: the root of a tensor, which is rounded to float32."""

    digits = 1e-6

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(torch.sqrt(torch.tensor(2.0 / torch.pi)) * (x + 0.044715 * torch.pow(x, 3))))


class TanhNumpy(Erf):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * torch.pow(x, 3))))


class TanhHalfLast(Erf):
    def forward(self, x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))
        return (x * (1 + inner.tanh())) * 0.5


class SiluLeft(nn.Module):
    rule = "AF302"

    def forward(self, x):
        return x * torch.sigmoid(x)


class SiluRight(nn.Module):
    rule = "AF302"

    def forward(self, x):
        return x.sigmoid() * x


class SiluFunctional(nn.Module):
    rule = "AF302"

    def forward(self, x):
        return torch.mul(x, F.sigmoid(x))


class SiluModule(nn.Module):
    rule = "AF302"

    def __init__(self):
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x):
        return x * self.gate(x)


class SiluDivided(nn.Module):
    rule = "AF302"

    def forward(self, x):
        return x / (1 + torch.exp(-x))


class MishOfSoftplus(nn.Module):
    rule = "AF305"

    def forward(self, x):
        return x * torch.tanh(F.softplus(x))


class MishOfLogarithm(nn.Module):
    rule = "AF305"

    def forward(self, x):
        return torch.tanh(torch.log(1 + torch.exp(x))) * x


class MishOfLog1p(nn.Module):
    rule = "AF305"

    def forward(self, x):
        return x * torch.log1p(torch.exp(x)).tanh()


class HardSwishOfRelu6(nn.Module):
    rule = "AF306"

    def forward(self, x):
        return x * F.relu6(x + 3.0) / 6.0


class HardSwishClamped(nn.Module):
    rule = "AF306"

    def forward(self, x):
        return x * ((x + 3).clamp(0, 6) / 6)


class SoftplusByLogarithm(nn.Module):
    rule = "AF308"
    safety = "unsafe"

    def forward(self, x):
        return torch.log(1.0 + torch.exp(x))


class SoftplusByLog1p(nn.Module):
    rule = "AF308"
    safety = "unsafe"

    def forward(self, x):
        return x.exp().log1p()


class SoftplusWithThreshold(nn.Module):
    rule = "AF308"
    safety = "unsafe"

    def forward(self, x):
        return torch.where(x > 20.0, x, torch.log1p(torch.exp(x)))


class SoftplusWithLowThreshold(nn.Module):
    rule = "AF308"

    def forward(self, x):
        return torch.where(x > 10, x, torch.log(torch.exp(x) + 1))


# Gated: SwiGLU, GeGLU, ReGLU, GLU.


class GluChunked(nn.Module):
    rule = "AF307"

    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        return a * torch.sigmoid(b)


class GluGateFirstNamed(nn.Module):
    rule = "AF307"

    def forward(self, x):
        value, gate = torch.chunk(x, 2, -1)
        return gate.sigmoid() * value


class SwigluOfUnknownProjections(nn.Module):
    """The projections are modules that are no linear layers of torch's."""

    rule = "AF303"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.w1, self.w3 = _Parallel(dim, hidden), _Parallel(dim, hidden)

    def forward(self, x):
        return F.silu(self.w1(x)) * self.w3(x)


class _Parallel(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(dim, hidden // 2) for _ in range(2))

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], dim=-1)


class Gated(nn.Module):
    rule = "AF303"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)
        self.act_fn = nn.SiLU()


class SwigluOfLlama(Gated):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class SwigluFunctional(Gated):
    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SwigluUpFirst(Gated):
    def forward(self, x):
        return self.down_proj(self.up_proj(x) * F.silu(self.gate_proj(x)))


class SwigluInStatements(Gated):
    def forward(self, x):
        gate = self.gate_proj(x)
        up = self.up_proj(x)
        gate = F.silu(gate)
        hidden = gate * up
        return self.down_proj(hidden)


class SwigluByHand(Gated):
    also = ("AF302",)

    def forward(self, x):
        gate = self.gate_proj(x)
        swish = gate * torch.sigmoid(gate)
        return self.down_proj(swish * self.up_proj(x))


class GegluWithBiases(nn.Module):
    rule = "AF303"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.wi_0 = nn.Linear(dim, hidden)
        self.wi_1 = nn.Linear(dim, hidden)
        self.wo = nn.Linear(hidden, dim)
        self.act = nn.GELU()

    def forward(self, x):
        hidden_gelu = self.act(self.wi_0(x))
        hidden_linear = self.wi_1(x)
        return self.wo(hidden_gelu * hidden_linear)


class GegluTanh(Gated):
    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class RegluTwoProjections(Gated):
    def forward(self, x):
        return self.down_proj(F.relu(self.gate_proj(x)) * self.up_proj(x))


class Halved(nn.Module):
    rule = "AF303"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.proj = nn.Linear(dim, 2 * hidden)
        self.out = nn.Linear(hidden, dim)


class SwigluChunked(Halved):
    def forward(self, x):
        gate, up = self.proj(x).chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


class SwigluOfPalm(nn.Module):
    """lucidrains: the gate is the second half."""

    rule = "AF303"

    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return F.silu(gate) * x


class GegluChunked(Halved):
    """Diffusion: GEGLU."""

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(x * F.gelu(gate))


class RegluChunkFunction(Halved):
    def forward(self, x):
        a, b = torch.chunk(self.proj(x), 2, dim=-1)
        return self.out(F.relu(a) * b)


class SwigluChunkIndexed(Halved):
    def forward(self, x):
        halves = torch.chunk(self.proj(x), 2, dim=-1)
        return self.out(F.silu(halves[0]) * halves[1])


class SwigluSliced(Halved):
    def forward(self, x):
        x = self.proj(x)
        half = x.shape[-1] // 2
        return self.out(F.silu(x[..., :half]) * x[..., half:])


class SwigluSplitInHalves(Halved):
    def forward(self, x):
        h = self.proj(x)
        gate, up = torch.split(h, h.size(-1) // 2, dim=-1)
        return self.out(up * F.gelu(gate))


class GluSliced(nn.Module):
    rule = "AF307"

    def forward(self, x):
        d = x.size(-1) // 2
        return x[..., :d] * torch.sigmoid(x[..., d:])


class SwigluMadeWithOptions(nn.Module):
    """timm: the device and the dtype come in keywords."""

    rule = "AF303"

    def __init__(self, dim=24, hidden=32, act_layer=nn.SiLU, device=None, dtype=None):
        dd = {"device": device, "dtype": dtype}
        super().__init__()
        self.fc1_g = nn.Linear(dim, hidden, **dd)
        self.fc1_x = nn.Linear(dim, hidden, **dd)
        self.act = act_layer()
        self.norm = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, dim, **dd)

    def forward(self, x):
        x_gate = self.fc1_g(x)
        x = self.fc1_x(x)
        x = self.act(x_gate) * x
        return self.fc2(self.norm(x))


# Linear, activation, linear.


class Mlp(nn.Module):
    rule = "AF304"

    def __init__(self, dim=24, hidden=32, p=0.0):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.drop = nn.Dropout(p)
        self.fc2 = nn.Linear(hidden, dim)
        self.p = p


class MlpOfVit(Mlp):
    def forward(self, x):
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop(x)
        x = self.fc2(x)
        x = self.drop(x)
        return x


class MlpInOneLine(Mlp):
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class MlpFunctional(Mlp):
    def forward(self, x):
        return self.fc2(F.dropout(F.relu(self.fc1(x)), self.p, self.training))


class MlpTanhGelu(Mlp):
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class MlpGeluByHand(Mlp):
    also = ("AF301",)

    def forward(self, x):
        h = self.fc1(x)
        h = 0.5 * h * (1.0 + torch.erf(h / math.sqrt(2.0)))
        return self.fc2(h)


class MlpWithoutBias(nn.Module):
    rule = "AF304"

    def __init__(self, dim=24):
        super().__init__()
        self.wi = nn.Linear(dim, 32, bias=False)
        self.wo = nn.Linear(32, dim, bias=False)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.wo(self.act(self.wi(x)))


class MlpSequential(nn.Module):
    rule = "AF304"

    def __init__(self, n_embd=24, p=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(p),
        )

    def forward(self, x):
        return self.net(x)


class MlpSequentialWithDropout(nn.Module):
    rule = "AF304"

    def __init__(self, dim=24, hidden_dim=32, p=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, hidden_dim), nn.GELU(), nn.Dropout(p), nn.Linear(hidden_dim, dim), nn.Dropout(p)
        )

    def forward(self, x):
        return x + self.net(x)


class MlpLinearFunction(nn.Module):
    rule = "AF304"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(hidden, dim) * 0.2)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.randn(dim, hidden) * 0.2)

    def forward(self, x):
        return F.linear(F.silu(F.linear(x, self.w1, self.b1)), self.w2)


class _QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class MlpOfClip(nn.Module):
    """The activation is a class of the project's own."""

    rule = "AF304"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.c_fc = nn.Linear(dim, hidden)
        self.gelu = _QuickGelu()
        self.c_proj = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class _NewGelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class MlpOfOwnGelu(nn.Module):
    rule = "AF304"
    also = ("AF301",)

    def __init__(self, dim=24, hidden=32, p=0.0):
        super().__init__()
        self.w_1 = nn.Linear(dim, hidden)
        self.w_2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(p)
        self.activation = _NewGelu()

    def forward(self, x):
        return self.w_2(self.dropout(self.activation(self.w_1(x))))


class MlpSquaredRelu(Mlp):
    def forward(self, x):
        return self.fc2(torch.square(F.relu(self.fc1(x))))


class MlpMish(Mlp):
    def forward(self, x):
        return self.fc2(F.mish(self.fc1(x)))


class MlpSoftplus(Mlp):
    def forward(self, x):
        return self.fc2(F.softplus(self.fc1(x)))


class MlpSoftplusModule(nn.Module):
    rule = "AF304"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.Softplus()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class MlpChosenActivation(nn.Module):
    """timm: the class of the activation is an argument."""

    rule = "AF304"

    def __init__(self, in_features=24, hidden_features=32, act_layer=nn.GELU, p=0.0):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = act_layer()
        self.drop1 = nn.Dropout(p)
        self.fc2 = nn.Linear(hidden_features, in_features)

    def forward(self, x):
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop1(x)
        return self.fc2(x)


class SwigluChosenActivation(nn.Module):
    rule = "AF303"

    def __init__(self, dim=24, hidden=32, activation=None):
        super().__init__()
        activation = activation or nn.SiLU
        self.gate = nn.Linear(dim, hidden)
        self.up = nn.Linear(dim, hidden)
        self.act = activation()

    def forward(self, x):
        return self.act(self.gate(x)) * self.up(x)


class MlpSequentialAfterNorm(nn.Module):
    """lucidrains: the norm is the first layer."""

    rule = "AF304"

    def __init__(self, dim=24, hidden_dim=32, p=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, hidden_dim), nn.GELU(), nn.Dropout(p), nn.Linear(hidden_dim, dim),
            nn.Dropout(p),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x) + x


class MlpSequentialOwnActivation(nn.Module):
    rule = "AF304"
    also = ("AF301",)

    def __init__(self, dim=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 32), _NewGelu(), nn.Linear(32, dim))

    def forward(self, x):
        return self.net(x)


class _Conv1D(nn.Module):
    """GPT-2's: a linear layer with its weight the other way round."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.1)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        size_out = x.size()[:-1] + (self.nf,)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        x = x.view(size_out)
        return x


class MlpOfGpt2(nn.Module):
    rule = "AF304"
    also = ("AF301",)

    def __init__(self, dim=24, hidden=32, p=0.0):
        super().__init__()
        self.c_fc = _Conv1D(hidden, dim)
        self.c_proj = _Conv1D(dim, hidden)
        self.act = _NewGelu()
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        h = self.act(self.c_fc(x))
        h2 = self.c_proj(h)
        return self.dropout(h2)


class _Matrices(nn.Module):
    """Weights as parameters: torch's way round, and the other."""

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(hidden, dim) * 0.2)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.randn(dim, hidden) * 0.2)
        self.b2 = nn.Parameter(torch.zeros(dim))
        self.w3 = nn.Parameter(torch.randn(hidden, dim) * 0.2)
        self.into = nn.Parameter(torch.randn(dim, hidden) / math.sqrt(dim))
        self.back = nn.Parameter(torch.randn(hidden, dim) / math.sqrt(hidden))


class Products(_Matrices):
    rule = "AF304"


class MlpByLinearFunctions(Products):
    def forward(self, x):
        return F.linear(F.gelu(F.linear(x, self.w1, self.b1)), self.w2, self.b2)


class MlpByTransposedProducts(Products):
    def forward(self, x):
        return F.gelu(x @ self.w1.t() + self.b1) @ self.w2.t() + self.b2


class MlpByMatmulOfT(Products):
    def forward(self, x):
        hidden = torch.relu(torch.matmul(x, self.w1.T) + self.b1)
        return hidden.matmul(self.w2.T).add(self.b2)


class MlpByProducts(Products):
    def forward(self, x):
        return self.b2 + F.silu(self.b1 + x @ self.into) @ self.back


class MlpByProductsWithoutBiases(Products):
    def forward(self, x):
        return torch.relu(x @ self.into).matmul(self.back)


class MlpByEinsum(Products):
    def forward(self, x):
        hidden = F.gelu(torch.einsum("btd,dh->bth", x, self.into) + self.b1)
        return torch.einsum("bth,dh->btd", hidden, self.w2) + self.b2


class MlpByAddmm(Products):
    arguments = {"x": "matrix_positions"}

    def forward(self, x):
        hidden = F.gelu(torch.addmm(self.b1, x, self.w1.t()))
        return self.b2.addmm(hidden, self.back)


class MlpOfLayersWeights(nn.Module):
    """The layers are there, and are not called."""

    rule = "AF304"

    def __init__(self, dim=24, hidden=32):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        hidden = F.gelu(F.linear(x, self.up.weight, self.up.bias))
        return hidden @ self.down.weight.t() + self.down.bias


class ResidualAroundProducts(Products):
    def forward(self, x):
        return x + F.gelu(x @ self.into + self.b1) @ self.back


class Swiglus(_Matrices):
    rule = "AF303"


class SwigluByTransposedProducts(Swiglus):
    def forward(self, x):
        return (F.silu(x @ self.w1.t()) * (x @ self.w3.t())) @ self.w2.t()


class GegluByLinearFunctions(Swiglus):
    def forward(self, x):
        return F.linear(F.gelu(F.linear(x, self.w1, self.b1)) * F.linear(x, self.w3), self.w2)


class GatedBySigmoid(Gated):
    def forward(self, x):
        return self.down_proj(torch.sigmoid(self.gate_proj(x)) * self.up_proj(x))


class GatedBySigmoidLast(Gated):
    def forward(self, x):
        return self.up_proj(x) * self.gate_proj(x).sigmoid()


class GatedBySigmoidModule(Gated):
    def __init__(self):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(24, 32), nn.Sigmoid())

    def forward(self, x):
        return self.gate(x) * self.up_proj(x)


class GatedBySigmoidByHand(Gated):
    def forward(self, x):
        return self.up_proj(x) / (1 + torch.exp(-self.gate_proj(x)))
