"""Samples and tokens of a step, from shapes."""

import torch

from autofuse.profiling.live.batch_size import Batch, batch_of, batch_of_calls

IDS = torch.zeros(3, 7, dtype=torch.long)
IMAGES = torch.zeros(5, 3, 8, 8)


def test_token_ids_give_samples_and_tokens():
    batch = batch_of(IDS)
    assert (batch.samples, batch.tokens) == (3, 21)
    assert "3x7" in batch.basis


def test_images_have_samples_and_no_tokens():
    assert (batch_of((IMAGES, torch.zeros(5, dtype=torch.long)))) == Batch(
        5, None, "samples: first dimension of the model's first input 5x3x8x8"
    )


def test_keywords_and_nested_containers_are_read_in_order():
    batch = batch_of(((), {"batch": {"scale": torch.tensor(2.0), "input_ids": IDS, "labels": IDS}}))
    assert (batch.samples, batch.tokens) == (3, 21)


def test_integers_with_another_number_of_rows_are_not_tokens():
    positions = torch.zeros(1, 7, dtype=torch.long)
    assert batch_of((IMAGES, positions)).tokens is None


def test_masks_of_booleans_are_no_tokens():
    assert batch_of((torch.zeros(3, 7, 4), torch.ones(3, 7, dtype=torch.bool))).tokens is None


def test_inputs_without_a_tensor_have_no_batch():
    assert batch_of((1, "a", None)) == Batch()
    assert batch_of(torch.tensor(1.0)) == Batch()


def test_accumulated_gradients_count():
    batch = batch_of(IDS).times(4)
    assert (batch.samples, batch.tokens) == (12, 84)
    assert "4 of them" in batch.basis
    assert batch_of(IMAGES).times(2).tokens is None


def test_numbers_that_the_user_passes_replace_inferred_ones():
    assert batch_of(IDS).given(tokens=5).samples == 3
    assert batch_of(IDS).given(tokens=5).tokens == 5
    assert batch_of(IDS).given(100, 200) == Batch(100, 200, "given by the user")
    assert batch_of(IDS).given() == batch_of(IDS)


def test_the_first_call_with_samples_counts():
    assert batch_of_calls([((1,), {}), ((IDS,), {}), ((IMAGES,), {})]).tokens == 21
    assert batch_of_calls([]) == Batch()
