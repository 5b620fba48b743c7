"""Tests of the demo's training: batches, losses, and gradients with a known error."""

import copy

import torch

from autofuse.demo.training import BATCH, Corpus, create_model, train_losses, wrong_gradients

CORPUS = Corpus.of("the cat watched. the lamp was lit. " * 20)


def test_a_corpus_numbers_its_characters_in_order():
    corpus = Corpus.of("bab c")
    assert corpus.alphabet == " abc" and corpus.ids.tolist() == [2, 1, 2, 0, 3]


def test_targets_are_the_inputs_shifted_by_one_character():
    inputs, targets = next(CORPUS.batches(12, seed=0))
    assert inputs.shape == targets.shape == (BATCH, 12)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_same_seed_gives_the_same_losses_and_the_model_learns():
    model = create_model(CORPUS, seed=0, block_size=16)
    first = list(train_losses(copy.deepcopy(model), CORPUS, 8, seed=0))
    assert first == list(train_losses(copy.deepcopy(model), CORPUS, 8, seed=0))
    assert first != list(train_losses(copy.deepcopy(model), CORPUS, 8, seed=1))
    assert first[-1] < first[0]


def test_wrong_gradients_have_the_requested_relative_error():
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer.register_step_pre_hook(wrong_gradients(1e-2, seed=0))
    weight.grad = torch.full((1000,), 3.0)
    optimizer.step()
    errors = -weight.detach() - 3.0
    torch.testing.assert_close(errors.abs(), torch.full((1000,), 3e-2), rtol=1e-4, atol=0.0)
    assert 400 < (errors > 0).sum() < 600


def test_an_error_of_zero_does_not_change_the_losses():
    model = create_model(CORPUS, seed=0, block_size=16)
    plain = list(train_losses(copy.deepcopy(model), CORPUS, 3, seed=0))
    assert plain == list(train_losses(copy.deepcopy(model), CORPUS, 3, seed=0, gradient_error=0.0))
    assert plain != list(train_losses(copy.deepcopy(model), CORPUS, 3, seed=0, gradient_error=1e-2))
