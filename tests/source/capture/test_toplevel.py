"""Top-level statements are captured like the body of a function, but other code may read their names."""

from __future__ import annotations

import textwrap

import pytest

from autofuse.loading.registry import load_rules
from autofuse.source.find.check import proposals
from autofuse.source.find.proposal import Proposal
from autofuse.source.write.file_edits import apply_proposals

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F

model, batches = nn.Linear(3, 4), []
"""


def check_proposals(body: str) -> list[Proposal]:
    return [p for p in _proposals(body) if p.finding.code.startswith("AF5")]


def _proposals(body: str) -> list[Proposal]:
    source = (HEAD + textwrap.dedent(body)).encode()
    return proposals(source, "train.py", rules=load_rules())


def rewrite(body: str) -> str:
    source = HEAD + textwrap.dedent(body)
    return apply_proposals(source.encode(), check_proposals(body)).decode().removeprefix(HEAD)


def test_a_loss_in_a_training_loop_is_fused_in_place() -> None:
    body = """
        for x, y in batches:
            loss = F.nll_loss(F.log_softmax(model(x), dim=1), y)
            loss.backward()
    """
    assert [p.finding.symbol for p in check_proposals(body)] == ["<module>"]
    assert "loss = F.cross_entropy(model(x), y)\n" in rewrite(body)


def test_code_that_only_the_loss_needs_is_removed_and_the_call_of_the_model_stays() -> None:
    body = """
        criterion = nn.NLLLoss()
        for x, y in batches:
            output = F.log_softmax(model(x), dim=1)
            criterion(output, y).backward()
    """
    text = rewrite(body)
    assert "log_softmax" not in text and "F.cross_entropy(model(x), y)" in text and ".backward()" in text
    assert text.count("model(x)") == 1


@pytest.mark.parametrize("criterion", ["nn.NLLLoss()", "nn.NLLLoss(ignore_index=0).to('cpu')", "nn.NLLLoss().cuda()"])
def test_a_function_uses_the_criterion_of_its_file(criterion: str) -> None:
    body = f"""
        criterion = {criterion}

        def step(x, y):
            return criterion(F.log_softmax(model(x), dim=1), y)
    """
    assert [p.finding.status for p in check_proposals(body)] == ["safe"]
    assert ("ignore_index=0" in rewrite(body)) == ("ignore_index" in criterion)


def test_a_criterion_with_two_assignments_is_not_known() -> None:
    body = """
        criterion = nn.NLLLoss()
        criterion = nn.NLLLoss(reduction="sum")

        def step(x, y):
            return criterion(F.log_softmax(model(x), dim=1), y)
    """
    assert not check_proposals(body)


def test_names_that_other_files_may_import_keep_their_values() -> None:
    body = """
        log_probs = F.log_softmax(model(torch.ones(2, 3)), dim=1)
        loss = F.nll_loss(log_probs, torch.tensor([0, 1]))
    """
    (proposal,) = check_proposals(body)
    assert proposal.finding.status == "declined" and "import" in proposal.finding.reason


def test_names_that_a_function_of_the_file_reads_keep_their_values() -> None:
    body = """
        for x, y in batches:
            output = F.log_softmax(model(x), dim=1)
            loss = F.nll_loss(output, y)

        def best():
            return output.argmax(1)
    """
    assert [p.finding.status for p in check_proposals(body)] == ["declined"]


def test_a_name_that_a_function_assigns_is_not_followed() -> None:
    body = """
        def change():
            global output
            output = None

        for x, y in batches:
            output = F.log_softmax(model(x), dim=1)
            change()
            loss = F.nll_loss(output, y)
    """
    assert all(p.edit is None for p in check_proposals(body))


def test_names_under_a_main_guard_are_private() -> None:
    body = """
        if __name__ == "__main__":
            x, y = torch.ones(2, 3), torch.tensor([0, 1])
            log_probs = F.log_softmax(x, dim=1)
            print(F.nll_loss(log_probs, y))
    """
    text = rewrite(body)
    assert "print(F.cross_entropy(x, y))" in text and "log_probs" not in text


def test_an_import_that_would_come_too_late_is_not_added() -> None:
    source = textwrap.dedent(
        """
        import torch

        x, y = torch.ones(2, 3), torch.tensor([0, 1])
        print(torch.nn.NLLLoss()(torch.log_softmax(x, 1), y))
        import math
        """
    ).encode()
    (proposal,) = proposals(source, "late.py", rules=load_rules())
    assert proposal.finding.status in ("report", "safe")
    if proposal.edit is not None:
        assert b"torch.nn.functional.cross_entropy(x, y)" in apply_proposals(source, [proposal])
