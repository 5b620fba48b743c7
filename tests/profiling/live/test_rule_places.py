"""Where rules would apply in models, which stay unchanged."""

import torch
from torch import Tensor, nn

import autofuse
from autofuse.demo import gpt
from autofuse.profiling.live.rule_places import read_places

CONFIG = gpt.Config(vocab_size=16, block_size=16, n_layer=2, n_head=2, n_embd=16)


class Chatty(nn.Module):
    """A norm that first prints a number of its input, which a trace cannot contain."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        if x.sum() > 1e9:
            return self.inner(x)
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


def tokens():
    return torch.zeros(2, 16, dtype=torch.long)


def test_attention_norm_and_gelu_of_the_demo_are_named_in_the_layers_that_hold_them():
    sites = {(s.fqn, s.rule) for s in read_places(gpt.GPT(CONFIG), tokens()).sites if s.status == "applies"}
    for layer in range(2):
        for place in ((f"h.{layer}.attn", "AF101"), (f"h.{layer}.ln_1", "AF201"), (f"h.{layer}.mlp.gelu", "AF301")):
            assert place in sites


def test_a_site_has_its_line_and_its_fused_operation():
    site = next(s for s in read_places(gpt.GPT(CONFIG), tokens()).sites if s.rule == "AF101")
    assert site.operation == "autofuse.ops.attention"
    assert site.file.endswith("gpt.py") and site.line


def test_a_part_of_a_larger_place_names_it():
    sites = {(s.fqn, s.rule): s for s in read_places(gpt.GPT(CONFIG), tokens()).sites}
    assert sites["h.0.mlp.gelu", "AF301"].part_of == "AF304 in h.0.mlp"
    assert sites["h.1.ln_2", "AF201"].part_of == "AF203 in h.1"
    assert not sites["h.0.attn", "AF101"].part_of


def test_reading_changes_nothing():
    model = gpt.GPT(CONFIG)
    kinds, numbers = [type(m) for m in model.modules()], torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    read_places(model, tokens())
    assert [type(m) for m in model.modules()] == kinds
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not autofuse.report(model).sites


def test_for_an_optimized_model_the_original_is_read_with_the_words_of_its_report():
    model = gpt.GPT(CONFIG)
    expected = {(s.fqn, s.rule) for s in read_places(model, tokens()).sites}
    autofuse.optimize(model, tokens(), tune=False)
    sites = read_places(model, tokens()).sites
    assert {(s.fqn, s.rule) for s in sites} == expected
    assert {s.status for s in sites if s.rule == "AF101"} == {"fused"}


def test_a_place_that_is_unread_or_does_not_apply_has_a_reason():
    sites = read_places(nn.Sequential(Chatty(), nn.Linear(8, 8)), torch.ones(2, 8)).sites
    assert [(s.fqn, s.status) for s in sites] == [("0", "declined")]
    assert sites[0].reason and sites[0].reason_code == "forward-needs-numbers"


def test_without_inputs_there_is_a_note_in_place_of_sites():
    reading = read_places(gpt.GPT(CONFIG))
    assert not reading.sites and "inputs" in reading.notes[0]


def test_a_model_without_anything_to_fuse_has_no_sites():
    assert not read_places(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(2, 8)).sites


def test_a_profile_has_the_code_of_the_reason():
    profile = autofuse.profile(Chatty(), torch.randn(2, 8, requires_grad=True))
    places = [p for layer in profile.to_dict()["layers"] for p in layer.get("places", ())]
    assert [(p["status"], p["reason_code"]) for p in places] == [("declined", "forward-needs-numbers")]


class WithWeights(nn.Module):
    """Attention with an additive mask that also returns its probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5 + mask, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2), weights


class WithoutWeights(nn.Module):
    """Drops the probabilities, so its child gets a narrow forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = WithWeights()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        result, _ = self.attention(x, mask)
        return torch.relu(result)


def test_masked_softmax_that_attention_replaces_counts_once() -> None:
    found = read_places(WithoutWeights(), (torch.randn(2, 16, 32), torch.zeros(2, 1, 16, 16)))
    places = {site.rule: site for site in found.sites if site.fqn == "attention" and site.status == "applies"}
    assert places["AF101"].part_of == ""
    assert places["AF102"].part_of == "AF101 in attention"
