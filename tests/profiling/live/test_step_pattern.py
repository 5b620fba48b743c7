"""Where a step ends, from the order of acts."""

from autofuse.profiling.live.step_pattern import StepPattern


def ends(acts: str) -> str:
    """The acts, with a bar after each act that ends a step."""
    pattern = StepPattern()
    return "".join(who + ("|" if pattern.record_act(who) else "") for who in acts)


def test_one_actor_ends_a_step_with_each_act():
    assert ends("aaa") == "a|a|a|"


def test_two_alternating_optimizers_make_one_step():
    assert ends("dgdgdgdgdg").endswith("dg|dg|dg|")
    assert ends("gdgdgdgdgd").endswith("gd|gd|gd|")


def test_five_acts_of_one_optimizer_and_one_of_another_are_a_step():
    assert ends("dddddg" * 5).endswith("dddddg|dddddg|")
    assert ends("gddddd" * 5).endswith("gddddd|gddddd|")


def test_wrong_decisions_are_counted():
    pattern = StepPattern()
    for who in "aaaa":
        pattern.record_act(who)
    assert pattern.changes == 0
    pattern.record_act("b")
    assert pattern.changes == 1


def test_another_stage_with_another_actor_is_a_new_rhythm():
    assert ends("aaabbb") == "a|a|a|b|b|b|"


def test_without_a_repetition_the_most_frequent_actor_ends_steps():
    irregular = "".join("a" * n + "b" for n in range(1, 14))
    pattern = StepPattern()
    for who in irregular:
        pattern.record_act(who)
    assert pattern.record_act("a")
    assert not pattern.record_act("b")
