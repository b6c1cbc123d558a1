"""Attention over a beginning that all rows share, against the library's over separate keys."""

import pytest
import torch
import torch.nn.functional as F

from midcourse.engines.common_prefix import MIN_ROWS, MIN_TOKENS, attend, num_common


def test_common_tokens_end_where_the_first_row_differs():
    beginning = list(range(MIN_TOKENS + 5))
    rows = [[*beginning, 1, 2], [*beginning, 1, 3, 4], [*beginning, 9], [*beginning, 2, 2]]

    assert num_common(rows) == MIN_TOKENS + 5
    assert num_common([*rows, [*beginning[:-1], 7, 7]]) == MIN_TOKENS + 4
    assert num_common([*rows, beginning]) == MIN_TOKENS + 5


def test_few_rows_and_short_beginnings_are_not_shared():
    long = [[*range(MIN_TOKENS), row] for row in range(MIN_ROWS)]

    assert num_common(long) == MIN_TOKENS
    assert num_common(long[:-1]) == 0
    assert num_common([row[1:] for row in long]) == 0
    assert num_common([]) == 0


@pytest.mark.parametrize("fold", [1, 2])
def test_equals_attention_over_keys_of_each_row(fold: int):
    generator = torch.Generator().manual_seed(3)
    num_rows, num_heads, size, slots, common = 5, 3, 8, 40, 24
    query = torch.randn(num_rows, num_heads, fold, size, generator=generator)
    keys, values = torch.randn(2, num_rows, num_heads, slots, size, generator=generator)
    for tensor in (keys, values):
        tensor[:, :, :common] = tensor[0, :, :common].clone()
    lengths = torch.tensor([25, 30, 40, 24, 33])  # a row may hold nothing but the beginning
    visible = torch.arange(slots) < lengths[:, None]
    mask = torch.where(visible, 0.0, -1e30)[:, None, None]

    expected = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=0.3)
    found = attend(query, keys, values, mask, 0.3, common)

    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_the_common_slots_are_read_from_row_0_alone():
    keys, values = torch.ones(2, 4, 1, 10, 2)
    keys[1:, :, :6] = values[1:, :, :6] = float("nan")

    found = attend(torch.ones(4, 1, 1, 2), keys, values, torch.zeros(4, 1, 1, 10), 1.0, 6)

    torch.testing.assert_close(found, torch.ones(4, 1, 1, 2))
