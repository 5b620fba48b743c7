"""Every form of a profile starts with the diagnosis."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from autofuse.display import profile_page, profile_terminal
from autofuse.display.diagnosis import saving
from autofuse.results.diagnosis import Action, Diagnosis
from autofuse.results.profile import Profile
from tests.display.samples import almost_nothing, gpt

FOUND = Diagnosis(
    "launch",
    "Launch-bound: the GPU idles 90 % of the step <while> the host launches 1,400 kernels.",
    (
        Action("cuda-graphs", "torch.compile(model)", 12.34, "1,400 kernels", "high"),
        Action("larger-batch", "Make the batch larger.", None, "", "medium"),
    ),
)


def profile() -> Profile:
    return replace(gpt(), diagnosis=FOUND)


def test_a_terminal_has_it_before_the_facts() -> None:
    console = Console(width=100, record=True, file=None)
    with console.capture() as captured:
        console.print(profile_terminal.summary(profile()))
    text = captured.get()
    assert (
        text.index("Launch-bound")
        < text.index("1. torch.compile(model)")
        < text.index("2. Make")
        < text.index("\nstep ")
    )
    assert "saves up to 12.3 ms a step" in text and "high confidence" in text


def test_a_page_has_it_before_the_figures_as_text() -> None:
    page = profile_page.html(profile())
    assert page.index('aria-label="Diagnosis"') < page.index('<dl class="figures">')
    assert "of the step &lt;while&gt; the host" in page and "saves up to 12.3 ms a step" in page


def test_a_notebook_begins_with_it() -> None:
    shown = profile_terminal.notebook({"": profile()})
    assert shown.index("Launch-bound") < shown.index("what to do") < shown.index("torch.compile(model)")
    assert "&lt;while&gt;" in shown


def test_without_a_diagnosis_nothing_is_shown() -> None:
    assert "Diagnosis" not in profile_page.html(almost_nothing())
    assert profile_terminal.notebook({"": almost_nothing()})


def test_no_saving_is_shown_without_a_prediction() -> None:
    assert saving(FOUND.actions[1]) == ""
