"""Rules about synchronization in training loops. They only give advice."""

from __future__ import annotations

import textwrap

import pytest

from autofuse.results.findings import Finding
from tests.source.rewriting import findings, rewritten, source

LOOP = """
    import math
    import torch
    import wandb

    def train(model, loader, optimizer, writer, bar, flags, running=0.0, log=[]):
        for step, (x, y) in enumerate(loader):
            x, y = x.cuda(), y.cuda()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                output = model(x)
                loss = torch.nn.functional.cross_entropy(output, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
{step}
"""


def find_findings(step: str, text: str = LOOP) -> list[Finding]:
    body = textwrap.indent(textwrap.dedent(step).strip("\n"), " " * 12)
    return [f for f in findings(text.format(step=body)) if f.code == "AF606"]


@pytest.mark.parametrize(
    ("step", "called"),
    [
        ("running += loss.item()", "loss.item()"),
        ("print(loss)", "print(loss)"),
        ("print(f'{step}: {loss:.3f}')", "print("),
        ("log.append(float(loss))", "float(loss)"),
        ("log.append(loss.detach().cpu().numpy())", "loss.detach().cpu()"),
        ("wandb.log({'loss': loss.item()})", "loss.item()"),
        ("wandb.log({'loss': loss})", "wandb.log("),
        ("writer.add_scalar('loss', loss, step)", "writer.add_scalar("),
        ("bar.set_postfix(loss=loss.item())", "loss.item()"),
        ("correct = (output.argmax(-1) == y).sum()\nrunning += correct.item()", "correct.item()"),
        ("if math.isnan(loss):\n    break", "math.isnan(loss)"),
        ("if loss.item() > 10:\n    break", "loss.item()"),
        ("with open('log') as file:\n    file.write(str(loss.item()))", "loss.item()"),
        ("torch.cuda.empty_cache()", "torch.cuda.empty_cache()"),
    ],
)
def test_waiting_for_the_device_at_every_step_is_reported_once(step: str, called: str) -> None:
    (finding,) = find_findings(step)
    assert finding.status == "report" and f"`{called}" in finding.message
    text = LOOP.format(step=textwrap.indent(step, " " * 12))
    assert rewritten(text) == source(text)


@pytest.mark.parametrize(
    "step",
    [
        "if step % 100 == 0:\n    print(loss.item())",
        "if step % 100:\n    continue\nprint(loss.item())",
        "if flags.verbose:\n    print(loss)",
        "log.append(loss.item() if step % 100 == 0 else None)",
        "running += loss.detach()",
        "print(step, len(loader), loss.shape, x.size(0))",
        "print(math.sqrt(step))",
        "log.append(lambda: loss.item())",
        "if loss is None:\n    break",
        "running += flags.weight.item()",
        "for p in model.parameters():\n    log.append(p.max().item())",
    ],
)
def test_occasional_waiting_is_left_alone(step: str) -> None:
    assert find_findings(step) == []


def test_the_advice_contains_the_statement_to_write() -> None:
    (finding,) = find_findings("running += loss.item() * x.size(0)")
    assert "`running += loss.detach() * x.size(0)`" in finding.advice


def test_a_number_that_was_read_once_is_not_read_again() -> None:
    found = find_findings("loss = loss.item()\nprint(loss)\nrunning += loss")
    assert [f.line for f in found] == [14]


@pytest.mark.parametrize(
    "text",
    [
        """
            import torch

            def evaluate(model, loader, total=0.0):
                for x, y in loader:
                    total += model(x.cuda(), y.cuda()).item()
                return total
        """,
        """
            import torch

            def train(model, loader, epochs):
                for epoch in range(epochs):
                    for x in loader:
                        loss = model(x.cuda())
                        loss.backward()
                    print(epoch, loss.item())
        """,
        """
            import torch
            from torch import nn

            model = nn.Linear(2, 1)
            timestamps = []
            for x in data:
                loss = model(x).sum()
                loss.backward()
                print(loss.item())
        """,
        """
            import torch

            def train(model, loader, device="cpu"):
                for x in loader:
                    loss = model(x.to(device))
                    loss.backward()
                    print(loss.item())
        """,
        """
            import torch

            def test_training(model, loader):
                for x in loader:
                    loss = model(x.cuda())
                    loss.backward()
                    assert loss.item() < 1
        """,
    ],
    ids=["evaluation", "once an epoch", "on the CPU", "for the CPU", "a test"],
)
def test_without_training_on_a_gpu_nothing_is_reported(text: str) -> None:
    assert [f for f in findings(text) if f.code == "AF606"] == []


def test_a_loop_in_a_test_function_is_ignored_only_if_it_asserts() -> None:
    assert [
        f.code
        for f in find_findings("running += loss.item()", LOOP + "\n    def test_loop(model):\n        return model\n")
    ] == ["AF606"]


TRAINER = """
    import torch
    from torch.utils.data import DataLoader

    class Trainer:
        def __init__(self, model, dataset, args):
            self.model = model.to(args.device)
            self.model.load_state_dict(torch.load(args.weights, map_location="cpu"))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, fused=True)
            self.loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=8)

        def train(self, losses, bar, predictions):
            for i, batch in enumerate(self.loader):
                batch = {k: v.to(self.device, non_blocking=True) for k, v in batch.items()}
                outputs = self.model(**batch)
                loss = outputs.loss / self.steps
                loss.backward()
                if (i + 1) % self.steps == 0:
                    self.optimizer.step()
                losses.update(loss.item(), batch["ids"].size(0))
                bar.set_postfix({"loss": f"{losses.average:.3f}"})
                accuracy = (outputs.logits.argmax(-1) == batch["labels"]).float().mean()
                bar.set_description(f"accuracy {accuracy:.2f}")
                predictions.extend(outputs.logits.argmax(-1).cpu().tolist())
                self.history.append(loss.detach().cpu().item())
"""


def test_a_trainer_class_is_checked_like_a_script() -> None:
    assert [(f.code, f.line) for f in findings(TRAINER)] == [
        ("AF602", 9), ("AF602", 9), ("AF606", 19), ("AF606", 22), ("AF606", 23), ("AF606", 24),
    ]  # fmt: skip
